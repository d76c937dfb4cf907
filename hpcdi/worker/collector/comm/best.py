"""The policy of the best evaluation, on disk."""

from __future__ import annotations

from functools import partial

from hpcdi.store.checkpoints import BEST_CHECKPOINT, POLICY_FILE, save_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy


def publish_best(layout: RunLayout, image: PolicyImage, mean: float, *, fsync: bool) -> None:
    """Write the best policy's file and its checkpoint, which has the weights alone.

    Args:
        layout: the run folder.
        image: the policy.
        mean: return of its evaluation.
        fsync: force it to disk.

    Raises:
        StoreError: the file system refuses it.
    """
    publish_policy(layout.best_policy, image, fsync=fsync)
    save_checkpoint(
        layout.checkpoints_dir, BEST_CHECKPOINT,
        {POLICY_FILE: partial(publish_policy, image=image)},
        {"train_iter": image.version, "reward_mean": mean}, keep=None, replace=True,
    )  # fmt: skip
