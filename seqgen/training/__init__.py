"""Training: from a task, a model and a configuration to a folder of checkpoints.

::

    train                    the loop: epochs, validation, stopping, saving
      Trainer                one update: forward, backward, clipping, optimizer, schedule, average
        Criterion            a batch's loss
        Optimizer, LRScheduler, EMA
      Validator              loss and decoded scores of the validation split
      Checkpoints            what is saved in a run folder, and how it is read back
      Progress               bar or lines, TensorBoard, log.jsonl
"""
