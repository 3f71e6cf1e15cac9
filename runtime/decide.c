/* The decisions of taskuq in C: docs/how-to/c-runtime.md says the same in words. */
#include "policy.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A few units in the last place: ends of intervals are rounded outwards by them. */
#define ROUNDING (4 * DBL_EPSILON)
/* Margins of a level beyond this count as this. */
#define MARGIN 300
/* Squares of smaller numbers, and of their inverses, come near the ends of the range of floats. */
#define TINY 1e-100
/* Every finite threshold is above this. */
#define LEAST (-DBL_MAX)

/* Sums of larger outputs may leave the range of floats; Python refuses them too. */
#define LARGEST 1e303

/* What one task of a case looks like: intervals [low - q scale, high + q scale]; both ends were
   shifted by so much. */
typedef struct { double low, high, scale, shift; } family;

static double clip(double x, double low, double high) { return fmin(fmax(x, low), high); }

/* Mean and spread; deviations from the first sample make that of identical ones exactly 0. */
static void moments(const double *x, size_t count, size_t step, double less, double *mean,
                    double *spread) {
    double center = 0, unit = 1, n = (double)count, least = x[0], most = x[0];
    for (size_t j = 0; j < count; j++) {
        center += x[j * step] - x[0];
        least = fmin(least, x[j * step]);
        most = fmax(most, x[j * step]);
    }
    center /= n;
    *mean = x[0] + center;
    for (int round = 0; round < 2; round++) {
        double squares = 0;
        for (size_t j = 0; j < count; j++) {
            double deviation = (x[j * step] - x[0] - center) / unit;
            squares += deviation * deviation;
        }
        *spread = sqrt(squares / fmax(n - less, 1)) * unit;
        if ((*spread > TINY && *spread < 1 / TINY) || !(most > least)) return;
        /* Squares may have left the range of floats: in another unit they do not. */
        int exponent;
        frexp(most - least, &exponent);
        unit = ldexp(1, exponent - 1);
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear interpolation between order statistics at position (p - 1) level. */
static double quantile(const double *ordered, size_t count, double level) {
    double position = level * (double)(count - 1);
    size_t index = (size_t)floor(position), next = index + 1 < count ? index + 1 : count - 1;
    double share = position - floor(position), step = ordered[next] - ordered[index];
    return share < 0.5 ? ordered[index] + step * share : ordered[next] - step * (1 - share);
}

/* The outputs in rising order; NULL where memory ran out. */
static double *sorted(const double *x, size_t count, size_t step) {
    double *ordered = malloc(count * sizeof *ordered);
    if (ordered == NULL) return NULL;
    for (size_t j = 0; j < count; j++) ordered[j] = x[j * step];
    qsort(ordered, count, sizeof *ordered, by_size);
    return ordered;
}

/* Mean without a tenth of the outputs at each end, and a multiple of the mean distance from it;
   deviations from one that is not trimmed make that of identical ones exactly 0. */
static void trimmed_moments(const double *ordered, size_t count, double *mean, double *spread) {
    double center = 0, distances = 0, n = (double)count, origin = ordered[count / 2];
    size_t cut = count / 10;
    int exponent;
    frexp(ordered[count - 1] - ordered[0], &exponent);
    double unit = ldexp(1, exponent - 1);
    for (size_t j = cut; j < count - cut; j++) center += (ordered[j] - origin) / unit;
    center /= (double)(count - 2 * cut);
    for (size_t j = 0; j < count; j++) distances += fabs((ordered[j] - origin) / unit - center);
    *mean = origin + center * unit;
    *spread = sqrt(acos(-1) / 2 * n / fmax(n - 1, 1)) * distances / n * unit;
}

static double moderated(const rule *how, double mean, double spread, double samples) {
    double x = 0;
    if (how->is_soft) {
        double t = clip((mean - how->soft.low) / (how->soft.high - how->soft.low), 0, 1);
        x = log(t * (1 - t) + 1e-4) / 2;
    }
    double trend = how->trend * exp(how->slope * clip(x, how->covariates.low, how->covariates.high) / 2);
    double all = how->degrees + samples - 1;
    return hypot(sqrt(how->degrees / all) * trend, sqrt((samples - 1) / all) * fmax(spread, how->least)) +
           how->added;
}

/* The intervals of one task; false where memory ran out. */
static bool looked_at(const rule *how, const double *x, size_t count, size_t step, family *out) {
    double spread = 0, less = how->scale == MODERATED ? 1 : how->less;
    double *ordered = how->is_quantiles || how->is_trimmed ? sorted(x, count, step) : NULL;
    if (ordered == NULL && (how->is_quantiles || how->is_trimmed)) return false;
    if (how->is_trimmed) trimmed_moments(ordered, count, &out->low, &spread);
    else moments(x, count, step, less, &out->low, &spread);
    out->high = out->low;
    out->scale = 1;
    if (how->is_quantiles) {
        out->low = quantile(ordered, count, how->levels.low);
        out->high = quantile(ordered, count, how->levels.high);
    }
    free(ordered);
    /* One sample has no spread: then every case has the same width, but for lwr, which has none. */
    if (how->scale == DEVIATION && (count > 1 || how->less == 0)) out->scale = spread;
    if (how->scale == MODERATED && count > 1)
        out->scale = moderated(how, out->low, spread, (double)count);
    out->shift = how->shift * out->scale;
    out->low += out->shift;
    out->high += out->shift;
    return true;
}

/* How far a bound on one side may go, and how far that is from its anchor. */
static double bound(const rule *how, double anchor, double *end) {
    double sign = how->side == UPPER ? 1 : -1;
    *end = how->has_level ? how->level : anchor + sign * how->max_width;
    return sign * (*end - anchor);
}

/* The threshold below which the interval achieves the goal. */
static double largest(const rule *how, const family *seen, pair range) {
    double reach, end;
    if (how->side != TWO) {
        reach = bound(how, how->side == UPPER ? seen->high : seen->low, &end);
    } else {
        double rest = how->max_width - (seen->high - seen->low);
        double below = fmax(seen->low - range.low, 0), above = fmax(range.high - seen->high, 0);
        double near = fmin(below, above), far = fmax(below, above);
        /* Each end moves until it meets the range; then the other has the rest to itself. */
        reach = rest <= 2 * near ? rest / 2 : rest - near;
        if (rest > near + far) reach = INFINITY;
    }
    if (seen->scale > 0) return reach / seen->scale;
    return reach > 0 ? INFINITY : -INFINITY;
}

/* The threshold below which the interval is empty. */
static double lowest(const rule *how, const family *seen) {
    if (how->side != TWO || !(seen->scale > 0)) return LEAST;
    return (seen->low - seen->high) / (2 * seen->scale);
}

/* The interval at a threshold, clipped to the range. */
static pair interval(const rule *how, const family *seen, double q, pair range) {
    bool is_moving = seen->scale > 0;
    pair found = {-INFINITY, INFINITY};
    if (q == -INFINITY && (is_moving || how->side == TWO)) {
        found = (pair){INFINITY, -INFINITY};
    } else if (q != INFINITY) {
        double step = isfinite(q) ? q : 0, slack = q > 0 && is_moving ? ROUNDING : 0;
        double reach = (step + ROUNDING * fabs(step)) * seen->scale;
        double shift = fabs(seen->shift);
        if (how->side != UPPER) found.low = seen->low - slack * (fabs(seen->low) + shift) - reach;
        if (how->side != LOWER) found.high = seen->high + slack * (fabs(seen->high) + shift) + reach;
    }
    /* An interval beyond the range is its nearest end, so that only crossed ends are empty. */
    return (pair){fmin(fmax(found.low, range.low), range.high),
                  fmax(fmin(found.high, range.high), range.low)};
}

/* A window that achieves the goal, and how far its nearer end is from the centre. */
static pair window(const rule *how, double center, double *reach) {
    double end, width = how->max_width;
    if (how->side != TWO) {
        *reach = bound(how, center, &end);
        return how->side == UPPER ? (pair){-INFINITY, end} : (pair){end, INFINITY};
    }
    double top = fmax(how->place.low, how->place.high - width);
    double lower = clip(center - width / 2, how->place.low, top);
    double upper = fmax(lower + width, lower >= top ? how->place.high : -INFINITY);
    /* An end at the end of the range is infinitely far. */
    double below = lower <= how->place.low ? INFINITY : center - lower;
    double above = upper >= how->place.high ? INFINITY : upper - center;
    *reach = fmin(below, above);
    return (pair){lower, upper};
}

/* Whether a task would stop at a threshold, and what would be reported. */
static bool stops(const rule *how, const family *seen, double threshold, pair range, pair *report) {
    if (!how->is_window) {
        *report = interval(how, seen, threshold, range);
        return lowest(how, seen) <= threshold && threshold < largest(how, seen, range);
    }
    double reach;
    pair found = window(how, seen->low, &reach);
    *report = (pair){fmax(found.low, range.low), fmin(found.high, range.high)};
    double risk = (reach > 0 ? how->weight / reach : INFINITY) * seen->scale;
    if (how->has_level) {
        double margin = seen->scale > 0 ? reach / seen->scale : reach > 0 ? INFINITY : -INFINITY;
        risk = how->weight * exp(-clip(margin, -MARGIN, MARGIN));
    }
    /* Not a number where a case without spread lies at the end of its window: it continues. */
    return threshold < -risk;
}

/* Whether all samples of some task agree in some round. */
static bool agree(const tq_policy *policy, const double *x, size_t rounds) {
    for (size_t k = 0; k < rounds; k++)
        for (size_t t = 0; t < policy->tasks; t++) {
            const double *first = x + k * policy->samples * policy->tasks + t;
            size_t j = 1;
            while (j < policy->samples && first[j * policy->tasks] == first[0]) j++;
            if (j == policy->samples) return true;
        }
    return false;
}

static const char *wrong_outputs(const tq_policy *policy, long round, const double *x, size_t rounds,
                                 size_t samples, size_t tasks) {
    if (round < 0 || (size_t)round >= policy->rounds) return "there is no such round to decide";
    if (rounds != (size_t)round + 1) return "outputs of all rounds so far are needed";
    if (samples != policy->samples || tasks != policy->tasks)
        return "the policy was calibrated with other numbers of samples or tasks";
    for (size_t i = 0; i < rounds * samples * tasks; i++) {
        pair range = policy->ranges[i % tasks];
        if (!(fabs(x[i]) <= LARGEST)) return "an output is not finite, or as good as infinite";
        if (x[i] < range.low || x[i] > range.high) return "an output lies outside its range";
    }
    return NULL;
}

const char *tq_decide(const tq_policy *policy, long round, const double *outputs, size_t rounds,
                      size_t samples, size_t tasks, bool *stop, double *lower, double *upper) {
    *stop = false;
    const char *wrong = wrong_outputs(policy, round, outputs, rounds, samples, tasks);
    if (wrong != NULL) return wrong;
    const double *now = outputs + (size_t)round * samples * tasks;
    bool all = true;
    for (size_t t = 0; t < tasks; t++) {
        const rule *how = &policy->rules[(size_t)round * tasks + t];
        family seen;
        pair report;
        if (!looked_at(how, now + t, samples, tasks, &seen)) return "memory ran out";
        if (!isfinite(seen.low) || !isfinite(seen.high) || !isfinite(seen.scale))
            return "a mean or a spread is not finite";
        all &= stops(how, &seen, policy->thresholds[round], policy->ranges[t], &report);
        if (isnan(report.low) || isnan(report.high)) return "an end of a report is not a number";
        lower[t] = report.low;
        upper[t] = report.high;
    }
    *stop = all && !(policy->refuses_identical && agree(policy, outputs, rounds));
    return NULL;
}
