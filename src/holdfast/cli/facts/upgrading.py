"""`upgrade`: a store of an older format becomes one of the newest.

Invariants:
- A dry run only reads, and says exactly what the real one would do.
- Like every verb that changes a pipeline it takes the writer's role first.
"""

from __future__ import annotations

from holdfast.checkpoint.upgrade import plan_upgrade, upgrade_store
from holdfast.cli.address import Place
from holdfast.cli.facts.keeping import check_lockable
from holdfast.cli.values import Upgrade
from holdfast.format.canonical import FORMAT_VERSION


def upgrade_place(place: Place, *, dry_run: bool, takeover: bool) -> Upgrade:
    """Upgrade one pipeline, or say what that would change."""
    plan = plan_upgrade(place.reader)
    if plan.needed and not dry_run:
        check_lockable(place, takeover=takeover, what="upgrade")
        plan = upgrade_store(place.storage, place.pipeline, takeover=takeover)
    return Upgrade(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=dry_run,
        format_before=1 if plan.needed else FORMAT_VERSION,
        format_after=FORMAT_VERSION,
        records=plan.records,
        steps=[*plan.steps],
        kept=dict(plan.kept),
    )
