"""korvet_group_join and korvet_group_await: how groups come to be, and who is let in.

Cases of Kafka's own tests name them: GMMT is GroupMetadataManagerTest, GCT the older GroupCoordinatorTest.
"""

from __future__ import annotations

from tests.lua.group import NONE, Group


def test_only_member_of_a_new_group_leads_the_first_generation(group: Group) -> None:
    member = group.known()
    joined = group.join(member)
    assert (joined.code, joined.status, joined.generation, joined.leader) == (NONE, "ready", 1, member)
    assert joined.members == ((member, "", b"range-metadata"),)
    assert group.state == "CompletingRebalance"


def test_three_members(group: Group) -> None:
    assert len(group.stable(3)) == 3
