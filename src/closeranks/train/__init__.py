"""Inside the user's process: the job, its steps, and the process group that survives its members."""

from closeranks.decide.suspicion import Guard
from closeranks.train.batches import Batches
from closeranks.train.job import Job, join
from closeranks.train.poison import CollectiveRefused, PeerLost
from closeranks.train.tree import NotProtectable

__all__ = ["Batches", "CollectiveRefused", "Guard", "Job", "NotProtectable", "PeerLost", "join"]
