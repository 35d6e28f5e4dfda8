"""Training: trains a model on a task and writes a run folder with checkpoints.

::

    train                    in this process, in several that it starts, or under torchrun
      TrainingLoop           epochs of updates, validation, saving, stopping; to observers it is a TrainingRun
        RunBatches           the batches of training and validation
        Triggers             after which updates to validate, save and stop
        Trainer              one update: forward, backward, clipping, optimizer, learning rate
          Criterion          loss of a batch
          Optimizer, LRScheduler
        Validator            loss of the validation split, and scores of its decoded text
        Checkpoints          saves and reads checkpoints (seqgen.checkpoints)
        TrainingObserver     EMA (averages of the weights), RunLog (log.jsonl, scores.json), TensorBoard, ProgressLines,
                             Divergence, and a user's own
      ProcessGroup           collective operations of several processes
"""
