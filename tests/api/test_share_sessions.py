"""Share sessions: their epochs, their partitions, and what an answer names."""

from __future__ import annotations

from uuid import UUID

import pytest

from korvet.api.shared import share_sessions
from korvet.api.shared.share_sessions import FINAL_EPOCH, FIRST_EPOCH, Opener, OpenSessions, ShareSession, ShareSessions
from korvet.codes import (
    INVALID_REQUEST,
    INVALID_SHARE_SESSION_EPOCH,
    SHARE_SESSION_LIMIT_REACHED,
    SHARE_SESSION_NOT_FOUND,
)
from tests.support.ported import kafka

A0, A1, B0, B1 = (UUID(int=1), 0), (UUID(int=1), 1), (UUID(int=2), 0), (UUID(int=2), 1)
LAST_EPOCH = 2**31 - 1
M = ("g", "m")
Fetched = ShareSession | int


def fetch(
    sessions: ShareSessions,
    epoch: int,
    *partitions: tuple[UUID, int],
    member: str = "m",
    most: int = 10,
    opener: Opener | None = None,
) -> Fetched:
    opener = opener or Opener()
    return sessions.fetch(opener, ("g", member), epoch, partitions, has_acknowledgements=False, most=most)


def opened(*partitions: tuple[UUID, int]) -> tuple[ShareSessions, ShareSession]:
    sessions = ShareSessions()
    session = fetch(sessions, FIRST_EPOCH, *partitions)
    assert isinstance(session, ShareSession)
    return sessions, session


@kafka("SharePartitionManagerTest.testNewContext")
def test_requests_of_a_session_have_epochs_one_after_the_other() -> None:
    sessions, session = opened(A0)
    assert [fetch(sessions, epoch) for epoch in (1, 2, 3)] == [session] * 3
    assert fetch(sessions, 3) == fetch(sessions, 5) == INVALID_SHARE_SESSION_EPOCH
    assert fetch(sessions, 4) is session


@kafka("SharePartitionManagerTest.testNewContextReturnsFinalContextWithoutRequestData")
@kafka("SharePartitionManagerTest.testNewContextReturnsFinalContextWithRequestData")
@kafka("SharePartitionManagerTest.testNewContextReturnsFinalContextWhenTopicPartitionsArePresentInRequestData")
@kafka("SharePartitionManagerTest.testReleaseSessionWithNullShareSession")
def test_final_epoch_leaves_the_session_until_it_is_closed() -> None:
    sessions, session = opened(A0)
    assert fetch(sessions, FINAL_EPOCH) is session
    assert fetch(sessions, FINAL_EPOCH, A0, B0) is session
    assert session.rotated(FIRST_EPOCH) == [A0]
    sessions.close(session)
    assert fetch(sessions, FINAL_EPOCH) == SHARE_SESSION_NOT_FOUND


@kafka(
    "SharePartitionManagerTest.testNewContextThrowsErrorWhenShareSessionNotFoundOnFinalEpoch",
    "SharePartitionManagerTest.testAcknowledgeSessionUpdateThrowsWhenShareSessionNotFound",
)
def test_request_without_a_session_is_refused_whatever_its_epoch() -> None:
    sessions = ShareSessions()
    assert [fetch(sessions, epoch) for epoch in (FINAL_EPOCH, 1, 7)] == [SHARE_SESSION_NOT_FOUND] * 3
    assert sessions.acknowledge(Opener(), M, 1, ()) == SHARE_SESSION_NOT_FOUND


@kafka("SharePartitionManagerTest.testReleaseSessionWithIncorrectGroupId testReleaseSessionWithIncorrectMemberId")
@kafka("SharePartitionManagerTest.testAcknowledgeIncorrectGroupId")
def test_session_of_another_member_or_group_is_another_one() -> None:
    sessions, session = opened(A0)
    assert fetch(sessions, 1, member="other") == SHARE_SESSION_NOT_FOUND
    assert sessions.acknowledge(Opener(), ("other", "m"), 1, ()) == SHARE_SESSION_NOT_FOUND
    assert sessions.acknowledge(Opener(), M, 1, ()) is session


@kafka("SharePartitionManagerTest.testNewContextExistingSessionNewRequestWithInitialEpoch")
def test_first_epoch_opens_a_new_session_instead_of_the_former_one() -> None:
    sessions, former = opened(A0)
    session = fetch(sessions, FIRST_EPOCH, B0, opener=former.opener)
    assert isinstance(session, ShareSession) and session is not former
    assert session.rotated(FIRST_EPOCH) == [B0]
    assert fetch(sessions, 1) is session


@kafka("SharePartitionManagerTest.testNewContextThrowsErrorWhenAcknowledgeDataPresentOnInitialEpoch")
@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchInitialEpochWithAcknowledgements")
def test_first_request_of_a_session_acknowledges_nothing() -> None:
    sessions, former = opened(A0)
    refused = sessions.fetch(Opener(), M, FIRST_EPOCH, [A0], has_acknowledgements=True, most=10)
    assert refused == INVALID_REQUEST
    assert fetch(sessions, 1) is former


@kafka("SharePartitionManagerTest.testAcknowledgeSessionUpdateThrowsOnInitialEpoch")
def test_acknowledgement_opens_no_session() -> None:
    sessions, _ = opened(A0)
    assert sessions.acknowledge(Opener(), M, FIRST_EPOCH, ()) == INVALID_SHARE_SESSION_EPOCH


@kafka(
    "SharePartitionManagerTest.testAcknowledgeSessionUpdateSuccessOnSubsequentEpoch",
    "SharePartitionManagerTest.testAcknowledgeSessionUpdateSuccessOnFinalEpoch",
    "SharePartitionManagerTest.testAcknowledgeSessionUpdateThrowsInvalidShareSessionEpochException",
)
def test_acknowledgements_and_fetches_share_one_row_of_epochs() -> None:
    sessions, session = opened(A0)
    assert fetch(sessions, 1) is session
    assert sessions.acknowledge(Opener(), M, 2, ()) is session
    assert sessions.acknowledge(Opener(), M, 2, ()) == INVALID_SHARE_SESSION_EPOCH
    assert sessions.acknowledge(Opener(), M, FINAL_EPOCH, ()) is session
    assert fetch(sessions, 3) is session


def test_epoch_after_the_largest_is_the_second() -> None:
    sessions, session = opened(A0)
    session.epoch = LAST_EPOCH
    assert fetch(sessions, LAST_EPOCH) is session
    assert session.epoch == 1


@kafka(
    "ShareSessionCacheTest.testShareSessionCache testRemoveConnection",
    "SharePartitionManagerTest.testNewContextThrowsErrorWhenShareSessionCacheIsFullOnInitialEpoch",
)
def test_sessions_of_all_namespaces_have_one_bound() -> None:
    every, opener = OpenSessions(), Opener()
    one, other = ShareSessions(every), ShareSessions(every)
    session = fetch(one, FIRST_EPOCH, member="a", most=2)
    assert isinstance(session, ShareSession)
    assert not isinstance(fetch(other, FIRST_EPOCH, member="b", most=2, opener=opener), int)
    assert fetch(other, FIRST_EPOCH, member="c", most=2) == SHARE_SESSION_LIMIT_REACHED
    # A new session in place of its former one takes no further room.
    assert not isinstance(fetch(other, FIRST_EPOCH, member="b", most=2, opener=opener), int)
    one.close(session)
    one.close(session)
    assert every.count == 1
    assert not isinstance(fetch(other, FIRST_EPOCH, member="c", most=2), int)


def test_partitions_of_all_sessions_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "MOST_OF_ALL_SESSIONS", 5)
    every = OpenSessions()
    one, other = ShareSessions(every), ShareSessions(every)
    first, second = fetch(one, FIRST_EPOCH, A0, A1, B0), fetch(other, FIRST_EPOCH, A0, A1)
    assert isinstance(first, ShareSession) and isinstance(second, ShareSession)
    assert one.refusal(first) == other.refusal(second) == 0
    second.change([B0], [])
    assert other.refusal(second) == SHARE_SESSION_LIMIT_REACHED
    other.close(second)
    assert (one.refusal(first), every.partitions) == (0, 3)
    one.close(first)
    assert (one.refusal(first), every.partitions) == (0, 0)


def test_tenants_that_take_all_they_get_leave_sessions_to_the_next_one() -> None:
    every = OpenSessions()
    tenants = [ShareSessions(every, leaves_room=True) for _ in range(3)]
    opened: list[list[ShareSession]] = [[], [], []]
    for tenant, own in zip(tenants, opened, strict=True):
        while isinstance(session := fetch(tenant, FIRST_EPOCH, member=f"m{len(own)}", most=16), ShareSession):
            own.append(session)
        assert session == SHARE_SESSION_LIMIT_REACHED
    assert list(map(len, opened)) == [8, 4, 2]
    # The largest one gets no new session before it has fewer than are free.
    for session in opened[0][:4]:
        tenants[0].close(session)
        refused = fetch(tenants[0], FIRST_EPOCH, member="new", most=16)
    assert isinstance(refused, ShareSession) and every.count == 11


def test_open_session_of_a_tenant_stays_when_others_have_taken_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "MOST_OF_ALL_SESSIONS", 4)
    every, opener = OpenSessions(), Opener()
    one, other = (ShareSessions(every, leaves_room=True) for _ in range(2))
    first = fetch(one, FIRST_EPOCH, A0, A1, most=2, opener=opener)
    second = fetch(other, FIRST_EPOCH, A0, most=2)
    assert isinstance(first, ShareSession) and isinstance(second, ShareSession)
    assert one.refusal(first) == other.refusal(second) == 0
    # The tenant has more partitions than are free by now.
    assert fetch(one, 1, most=2, opener=opener) is first and one.refusal(first) == 0
    first.holds.add(A0)
    again = fetch(one, FIRST_EPOCH, A0, most=2, opener=opener)
    assert isinstance(again, ShareSession) and again.holds == {A0} and every.count == 2


def test_tenant_has_at_most_the_partitions_that_it_leaves_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "MOST_OF_ALL_SESSIONS", 5)
    every = OpenSessions()
    one, other = (ShareSessions(every, leaves_room=True) for _ in range(2))
    for tenant, partitions, code in (
        (one, [A0, A1], 0),
        (one, [B0], SHARE_SESSION_LIMIT_REACHED),
        (other, [A0], 0),
        (other, [A1], SHARE_SESSION_LIMIT_REACHED),
    ):
        session = fetch(tenant, FIRST_EPOCH, *partitions)
        assert isinstance(session, ShareSession)
        assert tenant.refusal(session) == code
        if code:
            tenant.close(session)
    assert every.partitions == 3


def test_another_connection_goes_on_with_the_session_that_fits_its_request() -> None:
    sessions, other = ShareSessions(), Opener()
    first, second = fetch(sessions, FIRST_EPOCH, A0), fetch(sessions, FIRST_EPOCH, B0)
    assert isinstance(first, ShareSession) and isinstance(second, ShareSession)
    assert first.nonce != second.nonce
    assert fetch(sessions, 1, opener=first.opener) is first
    assert sessions.acknowledge(other, M, 2, [B0]) is first
    assert sessions.acknowledge(other, M, 1, [A0]) is second
    assert sessions.acknowledge(other, M, FINAL_EPOCH, [B0]) is second
    sessions.close(second)
    assert sessions.acknowledge(other, M, FINAL_EPOCH, [B0]) is first
    sessions.close(first)
    assert sessions.acknowledge(other, M, FINAL_EPOCH, [B0]) == SHARE_SESSION_NOT_FOUND


@kafka(
    "PartitionRotateStrategyTest.testRoundRobinStrategy testRoundRobinStrategyWithSpecialSessionEpochs",
    "SharePartitionManagerTest.testFetchMessagesRotatePartitions",
)
@kafka("PartitionRotateStrategyTest.testRoundRobinStrategyWithEmptyPartitions")
def test_each_partition_has_its_turn_to_be_fetched_first() -> None:
    _, session = opened(A0, A1, B0)
    assert session.rotated(FIRST_EPOCH) == [A0, A1, B0]
    assert session.rotated(1) == [A1, B0, A0]
    assert session.rotated(2) == [B0, A0, A1]
    assert session.rotated(3) == [A0, A1, B0]


@kafka("SharePartitionManagerTest.testToForgetPartitions testSubsequentShareSession")
@kafka("SharePartitionManagerTest.testCachedTopicPartitionsForValidShareSessions testZeroSizeShareSession")
def test_session_gets_partitions_and_forgets_some() -> None:
    _, session = opened(A0, A1)
    assert session.change([A1, B0, B0], [A0, B1]) == [B0]
    assert session.rotated(FIRST_EPOCH) == [A1, B0]
    assert A0 not in session and len(session) == 2
    assert session.change([], [A1, B0]) == [] and not len(session)
    assert session.rotated(7) == []
    assert session.change([A0], []) == [A0]


def test_answer_names_partitions_with_news() -> None:
    _, session = opened(A0, A1, B0)
    assert session.names(A0, has_records=True, has_error=False)
    assert not session.names(A1, has_records=False, has_error=False)
    assert session.names(B0, has_records=False, has_error=True)


def test_answer_names_an_added_partition_once_without_news() -> None:
    _, session = opened(A0)
    session.change([B0], [])
    assert session.names(B0, has_records=False, has_error=False)
    assert not session.names(B0, has_records=False, has_error=False)


def test_answer_names_a_partition_again_when_its_error_is_over() -> None:
    _, session = opened(A0)
    assert session.names(A0, has_records=False, has_error=True)
    assert session.names(A0, has_records=False, has_error=False)
    assert not session.names(A0, has_records=False, has_error=False)


def test_partition_with_records_goes_to_the_end_of_the_order() -> None:
    _, session = opened(A0, A1, B0)
    session.names(A0, has_records=True, has_error=False)
    session.names(A1, has_records=False, has_error=True)
    assert session.rotated(FIRST_EPOCH) == [A1, B0, A0]


def test_acknowledgement_needs_no_session_if_another_process_may_have_it() -> None:
    sessions, opener = ShareSessions(is_alone=False), Opener()
    elsewhere = sessions.acknowledge(opener, M, 7, [A0])
    assert isinstance(elsewhere, ShareSession) and elsewhere.is_elsewhere and elsewhere.holds == {A0}
    sessions.close(elsewhere)
    assert fetch(sessions, 7) == SHARE_SESSION_NOT_FOUND
    session = fetch(sessions, FIRST_EPOCH, A0, opener=opener)
    assert isinstance(session, ShareSession) and not session.is_elsewhere
    # Another process got the acknowledgements of the epochs between.
    assert fetch(sessions, 4, opener=opener) is session
    assert fetch(sessions, 4, opener=opener) == INVALID_SHARE_SESSION_EPOCH


def test_acknowledgement_of_a_session_elsewhere_leaves_one_of_other_partitions_as_it_is() -> None:
    sessions, opener = ShareSessions(is_alone=False), Opener()
    here = fetch(sessions, FIRST_EPOCH, A0, opener=opener)
    elsewhere = sessions.acknowledge(Opener(), M, 5, [B0])
    assert isinstance(elsewhere, ShareSession) and elsewhere.is_elsewhere
    assert sessions.acknowledge(Opener(), M, 1, [A0, B0]) is here
    assert fetch(sessions, 2, opener=opener) is here


def test_session_after_one_of_which_nobody_knows_what_it_holds_is_another_connections() -> None:
    sessions, opener = ShareSessions(), Opener()
    first = fetch(sessions, FIRST_EPOCH, A0, opener=opener)
    other = fetch(sessions, FIRST_EPOCH, A0, member="other", opener=opener)
    assert isinstance(first, ShareSession) and isinstance(other, ShareSession)
    former, kept = first.nonce, other.nonce
    sessions.close(first)
    opener.renew()
    second = fetch(sessions, FIRST_EPOCH, A0, opener=opener)
    assert isinstance(second, ShareSession)
    assert second.nonce != former == kept == other.nonce
