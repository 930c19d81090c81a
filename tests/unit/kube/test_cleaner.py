"""What the cleaner keeps in mind of objects, with a connection that only counts what is made."""

from typing import Any

from modelweights_operator.cleaner import Cleaner
from modelweights_operator.domain.cleanup import Cleanup, Notice
from tests.unit.domain.samples import NOW, OWNER_UID, POLICY, make_snapshot


class Connection:
    """Takes events, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    async def create(self, _path: str, _body: dict[str, Any]) -> None:
        self.made += 1


async def test_what_it_knows_of_an_object_goes_with_it_though_it_had_no_finalizer() -> None:
    api = Connection()
    cleaner = Cleaner(api, POLICY, may_hold=True, wake=lambda _: None)  # type: ignore[arg-type]
    plan = Cleanup(notices=(Notice("Warning", "CleanupFailed", "no right"),))

    async def events_after(living: set[str]) -> int:
        await cleaner.sweep(living)
        await cleaner.finish(make_snapshot(), plan, NOW)
        return api.made

    assert await events_after({OWNER_UID}) == 1
    assert await events_after({OWNER_UID, "another"}) == 1
    assert await events_after({"another"}) == 2
