"""How well the diagnosis finds the cause of a broken training: a corpus of real trainings, and the share it finds.

    python -m benchmarks.diagnosis train       # the trainings that are missing
    python -m benchmarks.diagnosis evaluate    # recall, first cause, false warnings, delay
    python -m benchmarks.diagnosis suggestions    # success after the suggestion of each cause
    python -m benchmarks.diagnosis cost        # processor time of live alerts in the default training

| file | content |
|---|---|
| `worlds.py` | the tasks of the small policies, and their graders, right and wrong |
| `recipes.py` | the healthy kinds, and the faults: what is broken and how |
| `withheld.py` | faults from issue trackers, each with its thread |
| `trackers.py`, `field.py`, `reports.py`, `threads.py`, `issues.py`, `practice.py` | more of them, with their patches |
| `small_models.py` | faults in trainings of SmolLM2-135M |
| `patches.py`, `unseen_patches.py`, `withheld_patches.py` | faults that no setting causes, as patches of the engine |
| `training.py` | trains what is missing, and keeps records |
| `evaluation.py` | runs the product's `check` over the records |
| `suggestions.py` | stops broken trainings on their cause, and continues them with the suggestion |
| `cost.py` | times the detectors in the default training |
| `others.py` | runs rldoctor and rlprobe over the same records |
"""
