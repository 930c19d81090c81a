"""When it is a fault's turn, of all that fits it. Shared by the proxies."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Turns:
    """Counts.

    Attributes:
        every: The first of so many that fit, and then each so many later.
        times: So often at most; 0 for ever.
        served: How often it was its turn.
    """

    every: int = 1
    times: int = 0
    served: int = field(default=0, init=False)
    _fitting: int = field(default=0, init=False)

    def take(self) -> bool:
        """Count one that fits; tell whether it is its turn."""
        self._fitting += 1
        if (self._fitting - 1) % self.every or (self.times and self.served >= self.times):
            return False
        self.served += 1
        return True
