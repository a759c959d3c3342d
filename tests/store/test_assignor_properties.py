"""Properties of every group's targets, for any former targets of its members."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from korvet.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec, changed
from tests.store.assignor_specs import assign, assigned, moves, sizes, topic, with_members

NAMES = [f"member-{number}" for number in range(8)]
TOPICS = [topic(number) for number in range(1, 6)]


@st.composite
def groups(draw: st.DrawFn, *, same_topics: bool) -> GroupSpec:
    """A group whose members hold some partitions; a few partitions may be held twice, or belong to no topic."""
    partitions = {one: draw(st.integers(0, 9)) for one in TOPICS}
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    subsets = st.frozensets(st.sampled_from(TOPICS))
    common = draw(subsets)
    members = {}
    for name in names:
        held = draw(st.dictionaries(st.sampled_from(TOPICS), st.sets(st.integers(0, 10), min_size=1)))
        members[name] = MemberSpec(
            id=name,
            topics=common if same_topics else draw(subsets),
            current={one: tuple(sorted(many)) for one, many in held.items()},
        )
    return GroupSpec(members=members, partitions=partitions)


same = groups(same_topics=True)
mixed = groups(same_topics=False)


def fewest_moves(spec: GroupSpec) -> int:
    """The number of partitions that must move to balance a settled group whose members have the same topics."""
    held = sorted((sizes({name: one.current})[name] for name, one in spec.members.items()), reverse=True)
    total = sum(spec.partitions[one] for one in next(iter(spec.members.values())).topics)
    quota, extras = divmod(total, len(held))
    return total - sum(min(count, quota + (index < extras)) for index, count in enumerate(held))


def improvable(spec: GroupSpec, targets: Mapping[str, Assignment]) -> bool:
    """Whether a partition could go to a subscriber that has two fewer than the partition's owner."""
    size = sizes(targets)
    return any(
        size[taker] + 1 < size[giver] and one in spec.members[taker].topics
        for giver in targets
        for one in targets[giver]
        for taker in targets
    )


@given(same)
def test_uniform_is_balanced_if_all_members_have_the_same_topics(spec: GroupSpec) -> None:
    size = sizes(assign("uniform", spec)).values()
    assert max(size) - min(size) <= 1


@given(mixed)
def test_uniform_target_cannot_be_balanced_further_by_one_partition(spec: GroupSpec) -> None:
    assert not improvable(spec, assign("uniform", spec))


@given(st.one_of(same, mixed))
def test_range_is_balanced_in_each_topic(spec: GroupSpec) -> None:
    targets = assign("range", spec)
    for one in TOPICS:
        shares = [len(targets[name].get(one, ())) for name in targets if one in spec.members[name].topics]
        assert not shares or max(shares) - min(shares) <= 1
    for held in targets.values():
        assert all(many == tuple(range(many[0], many[-1] + 1)) for many in held.values())


@given(st.one_of(same, mixed), st.sampled_from(list(ASSIGNORS)))
def test_second_target_equals_the_first(spec: GroupSpec, name: str) -> None:
    settled = assigned(spec, assign(name, spec))
    assert changed(settled, assign(name, settled)) == {}


@given(st.one_of(same, mixed), st.sampled_from(list(ASSIGNORS)), st.randoms(use_true_random=False))
def test_order_of_members_changes_no_target(spec: GroupSpec, name: str, random: Random) -> None:
    members = list(spec.members.values())
    random.shuffle(members)
    assert assign(name, with_members(spec, *members)) == assign(name, spec)


@given(same, st.data())
def test_uniform_moves_as_little_as_balance_allows(spec: GroupSpec, data: st.DataObject) -> None:
    """The group was settled; then members left, members came, and partitions were added."""
    settled = assigned(spec, assign("uniform", spec))
    gone = data.draw(st.sets(st.sampled_from(sorted(spec.members)), max_size=len(spec.members) - 1))
    stay = [one for name, one in settled.members.items() if name not in gone]
    new = [MemberSpec(id=f"new-{number}", topics=stay[0].topics) for number in range(data.draw(st.integers(0, 4)))]
    grown = {one: count + data.draw(st.integers(0, 3)) for one, count in spec.partitions.items()}
    later = with_members(GroupSpec(members={}, partitions=grown), *stay, *new)
    assert moves(later, assign("uniform", later)) == fewest_moves(later)


@given(same)
def test_added_member_gets_its_share_and_nothing_else_moves(spec: GroupSpec) -> None:
    settled = assigned(spec, assign("uniform", spec))
    topics = next(iter(spec.members.values())).topics
    later = with_members(settled, *settled.members.values(), MemberSpec(id="new", topics=topics))
    targets = assign("uniform", later)
    assert moves(later, targets) == sizes(targets)["new"]


@given(st.one_of(same, mixed))
def test_nothing_moves_if_the_removed_members_had_no_partitions(spec: GroupSpec) -> None:
    settled = assigned(spec, assign("uniform", spec))
    stay = [one for one in settled.members.values() if one.current]
    later = with_members(settled, *stay)
    assert changed(later, assign("uniform", later)) == {}
