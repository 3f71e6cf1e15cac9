# %% [markdown]
# # Read a report
#
# This tutorial is for reviewers and clinicians. It explains what a report shows, what it guarantees, and which
# questions to ask. Build a report from the bundled table of 270 synthetic patients, or open a report that you received.

# %%
import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")  # lesion probability, 2160 slices, R = 16, 8, 4, 2
names = {"case": "slice", "group": "patient"}
tq.make_report(table, "report", alpha=0.1, max_width=0.2, splits=50, terminology=names)

# %% [markdown]
# The first screen of `report/report.html` shows one sentence, three numbers, the guarantee and one scan. The numbers
# are
#
# - **measurements needed**: the average cost of a scan, as a fraction of a full scan, and R̄, the harmonic mean of the
#   accelerations. Compare R̄ with that of the baseline, the paper's rule;
# - **reported intervals that contained the truth**: the coverage, measured on random splits of the table;
# - **mean interval width of scans that stopped early**; the limit τ is 0.2.
#
# The number after ± is one standard error; it includes the variation between patients and between calibration sets.
# **The truth** is the task network's output on the fully sampled image, not the patient's diagnosis. **A scan** is shown
# with one strip for each round: dots are outputs on posterior samples, the bar is the reported interval, and the line is
# the truth.
#
# ## The guarantee
#
# Read the sentence with the guarantee word by word. It names
#
# - **what is covered**: "the target of a random slice of a new patient". This is not a guarantee for all slices of a
#   patient, nor for one given patient;
# - **the probability**: at least 0.9, on average over calibration sets and new patients;
# - **the assumption**: the new patient is exchangeable with the calibration patients. A different scanner, protocol or
#   population violates this assumption. The report cannot detect a violation, but `tq.Monitor` tests for it;
# - **what must not have happened**: that a setting was chosen by looking at the calibration targets.
#
# The report uses the word *guaranteed* only for such statements. *Measured* numbers describe this table.
#
# ## Questions to ask
#
# 1. **Which patients were used for calibration?** "Intended use and limits" lists data, networks and settings. Were α and
#    τ fixed before the results were known?
# 2. **What is the unit?** If slices of a patient were treated as independent cases, the coverage for new patients is
#    unknown.
# 3. **How much coverage comes from full scans?** A full scan counts as covered. The first screen therefore also gives the
#    coverage of the scans that stopped early, and their fraction.
# 4. **How does coverage differ between classes?** An average of 0.9 may hide 0.6 for a rare class. Look at the coverage
#    by class, as in the figure below, and at the rows by class in "Are the samples calibrated?". Intervals are valid
#    even if the samples are not calibrated, but they are then wider.
# 5. **Are there enough patients?** At α = 0.1, 9 patients are enough for a finite interval, but many more are needed to
#    keep the coverage of one calibration set near 0.9.
# 6. **What failed?** "Failures" lists the cases that were omitted, with the reasons.
#
# The sliders of the explorer show the effect of α and τ. Do not use them to choose settings: a setting that was tuned
# on the results has no guarantee. "Reproduce" lists the commands, seed and versions.

# %%
results = tq.evaluate(table, acceleration=8, alpha=0.1, splits=200, seed=0)
tq.plot.coverage(results, "class")
