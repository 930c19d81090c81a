"""Which of several operators acts: what a candidate does about the Lease. Called by `kube.lease`; no I/O, no clock.

Times are seconds on the candidate's own clock, which only has to go on evenly: no time that stands in the Lease is ever
read, so clocks that are an hour apart change nothing. A holder counts as dead when nobody saw the record change for as long
as it was granted, counted from when *this* candidate saw it change last.

standby --Take: free, or unchanged for its whole duration--> leads --no answer for `renew_seconds`--> pauses, writes nothing
                                                               ^---------renewed: nobody else had it---------+
leads, pauses --another one has it--> lost: the process ends

No write arrives while another one acts if it arrives within 2.5 s of when it was let through (of 15 s; a sixth of the Lease's
time), and no clock runs more than a tenth too fast or too slow.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum, auto


@dataclass(frozen=True)
class Timing:
    """How long what lasts.

    Attributes:
        lease_seconds: Without a change for so long, a Lease is anybody's.
        renew_seconds: Without a renewal for so long, its holder writes nothing.
        retry_seconds: Between two looks at it, or two renewals.
    """

    lease_seconds: float
    renew_seconds: float
    retry_seconds: float

    @classmethod
    def of(cls, lease_seconds: float) -> "Timing":
        """In the proportions of Kubernetes' own controllers: 15, 10 and 2 seconds."""
        return cls(lease_seconds, lease_seconds * 2 / 3, lease_seconds * 2 / 15)


@dataclass(frozen=True)
class Lease:
    """What counts of the record.

    Attributes:
        version: Its resourceVersion: another one means that somebody wrote it.
        holder: Whose it is; "" when it was released.
        seconds: For how long it was granted.
        transitions: How often it was taken.
    """

    version: str
    holder: str
    seconds: float
    transitions: int


class Step(Enum):
    """What to do next."""

    CREATE = auto()
    TAKE = auto()
    RENEW = auto()
    WAIT = auto()
    LOST = auto()


@dataclass(frozen=True)
class Candidate:
    """One operator, and what it knows of the Lease. Its changes return a copy.

    Attributes:
        name: Its own, unlike any that lives at the same time.
        timing: How long what lasts.
        lease: As it was read or written last.
        held_until: Before this it is another one's, for all that can be known from here.
        tenure: The Lease's `transitions` since this one has it; None while it doesn't lead.
        renewed_at: When the last write of the Lease that succeeded was begun.
        lost: Whether another one had it after this one.
    """

    name: str
    timing: Timing
    lease: Lease | None = None
    held_until: float = -math.inf
    tenure: int | None = None
    renewed_at: float = -math.inf
    lost: bool = False

    @property
    def leads(self) -> bool:
        """Whether it has the Lease, as far as it knows."""
        return self.tenure is not None and not self.lost

    def may_write(self, now: float) -> bool:
        """Whether nobody else can have the Lease yet."""
        return self.leads and now - self.renewed_at < self.timing.renew_seconds

    def saw(self, lease: Lease | None, now: float) -> "Candidate":
        """It read the Lease; None where there is none.

        Args:
            lease: What the API server has.
            now: When the answer had come: later than the change, never earlier.
        """
        if self.leads:
            if lease is None:
                return replace(self, lease=None, lost=not self.may_write(now))
            ours = (lease.holder, lease.transitions) == (self.name, self.tenure)
            return replace(self, lease=lease, lost=not ours)
        if lease is None and self.lease is not None:
            # Deleted by hand: its holder may have renewed it just before, and not know it yet.
            return replace(self, lease=None, held_until=now + max(self.lease.seconds, self.timing.lease_seconds))
        if lease is None or (self.lease is not None and self.lease.version == lease.version):
            return self
        return replace(self, lease=lease, held_until=now + lease.seconds if lease.holder else now)

    def wrote(self, lease: Lease, began: float) -> "Candidate":
        """It wrote the Lease, with its own name.

        Args:
            lease: What the API server has now.
            began: When the write was begun: earlier than the change, never later.
        """
        return replace(self, lease=lease, tenure=lease.transitions, renewed_at=began)

    def next(self, now: float) -> tuple[Step, float]:
        """What to do, and for WAIT how many seconds."""
        if self.lost:
            return Step.LOST, 0
        if self.leads:
            if self.lease is None:
                return (Step.CREATE if self.may_write(now) else Step.LOST), 0
            left = self.renewed_at + self.timing.retry_seconds - now
            return (Step.WAIT, left) if left > 0 else (Step.RENEW, 0)
        # Its own name is that of an earlier process in the same pod, which is dead, or of a write whose answer was lost.
        if self.lease is not None and self.lease.holder in ("", self.name):
            return Step.TAKE, 0
        left = self.held_until - now
        if left > 0:
            return Step.WAIT, min(left, self.timing.retry_seconds)
        return (Step.TAKE if self.lease is not None else Step.CREATE), 0
