# 2. Check
taskuq data check data/knee_multicoil_val --labels data/knee.csv --file-list data/knee_file_list.csv \
    --json runs/fastmri-knee/data-check.json
taskuq data check data/knee_multicoil_train --labels data/knee.csv --file-list data/knee_file_list.csv \
    --slices all

# 3. Prepare
taskuq data prepare data/knee_multicoil_train --cache cache/knee --workers 8
taskuq data prepare data/knee_multicoil_val   --cache cache/knee --workers 8 --precision single

# 4. Train
taskuq train varnet     configs/fastmri-knee/varnet.toml
taskuq train flow       configs/fastmri-knee/flow.toml
taskuq train simclr     configs/fastmri-knee/simclr.toml
taskuq train classifier configs/fastmri-knee/classifier.toml

# 5. Run
taskuq run configs/fastmri-knee/run-flow.toml   -o runs/fastmri-knee/table
taskuq run configs/fastmri-knee/run-varnet.toml -o runs/fastmri-knee-ar/table
taskuq quality configs/fastmri-knee/quality.toml -o runs/fastmri-knee/quality.json

# 6. The tables
taskuq evaluate runs/fastmri-knee/table --score lwr,cqr,mlwr,learned --alpha 0.05 --unit case \
    --json runs/fastmri-knee/evaluate.json
taskuq evaluate runs/fastmri-knee-ar/table --score ar --alpha 0.05 --unit case \
    --json runs/fastmri-knee/evaluate-ar.json
taskuq simulate runs/fastmri-knee/table --score lwr,cqr --alpha 0.01 --max-width 0.1 --unit case \
    --json runs/fastmri-knee/simulate.json
taskuq calibrate runs/fastmri-knee/table --acceleration 8 --score lwr -o runs/fastmri-knee/bound-R8.json
taskuq plan runs/fastmri-knee/table --alpha 0.01 --max-width 0.1 --unit case \
    -o runs/fastmri-knee/policy.json
taskuq experiment all --table runs/fastmri-knee/table --point runs/fastmri-knee-ar/table \
    --quality runs/fastmri-knee/quality.json \
    --classifier runs/fastmri-knee-classifier/quality.json \
    --data configs/fastmri-knee/flow.toml -o runs/fastmri-knee
taskuq report runs/fastmri-knee
