"""Requests as handlers read them: one class for all versions of an API. `scripts/pages` writes this file.

Source: Kafka's schemas, by kio. A comment names the versions of a field that some served version lacks. There it has
its default, as in Kafka (`korvet.wire.schema.request_schema`). If two APIs have an entity of one name, its class has
the fields of both.

These are types alone. A request is kio's entity of its version, or `korvet.wire.produce_request.ProduceRequest`.
"""

from __future__ import annotations

from dataclasses import Field
from datetime import timedelta
from typing import Any, ClassVar, dataclass_transform
from uuid import UUID


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Entity:
    """A request, or a part of one."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class PartitionProduceData(Entity):
    index: int
    records: bytes | memoryview | None


class TopicProduceData(Entity):
    topic_id: UUID | None = None  # 13+
    partition_data: tuple[PartitionProduceData, ...]
    name: str = ""  # 3-12


class ProduceRequest(Entity):
    transactional_id: str | None = None
    acks: int
    timeout: timedelta
    topic_data: tuple[TopicProduceData, ...]


class ReplicaState(Entity):
    replica_id: int = -1
    replica_epoch: int = -1


class FetchPartition(Entity):
    partition: int = 0  # API 1
    current_leader_epoch: int = -1  # API 1
    fetch_offset: int = 0  # API 1
    last_fetched_epoch: int = -1  # API 1
    log_start_offset: int = -1  # API 1
    partition_max_bytes: int = 0  # API 1
    replica_directory_id: UUID | None = None  # API 1
    high_watermark: int = 9223372036854775807  # API 1
    partition_index: int = 0  # API 78
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()  # API 78


class FetchTopic(Entity):
    topic_id: UUID | None = None  # API 1, 78
    partitions: tuple[FetchPartition, ...]
    topic: str = ""  # API 1


class ForgottenTopic(Entity):
    topic_id: UUID | None = None  # API 1, 78
    partitions: tuple[int, ...] = ()
    topic: str = ""  # API 1


class FetchRequest(Entity):
    cluster_id: str | None = None  # 12+
    replica_state: ReplicaState = ReplicaState()  # 15+
    max_wait: timedelta
    min_bytes: int
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0  # 7+
    session_epoch: int = -1  # 7+
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()  # 7+
    rack_id: str = ""  # 11+
    replica_id: int = -1  # 4-14


class ListOffsetsPartition(Entity):
    partition_index: int
    current_leader_epoch: int = -1  # 4+
    timestamp: int


class ListOffsetsTopic(Entity):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(Entity):
    replica_id: int
    isolation_level: int = 0  # 2+
    topics: tuple[ListOffsetsTopic, ...]
    timeout: timedelta = timedelta()  # 10+


class MetadataRequestTopic(Entity):
    topic_id: UUID | None = None  # 10+
    name: str | None


class MetadataRequest(Entity):
    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool = True  # 4+
    include_topic_authorized_operations: bool = False  # 8+
    include_cluster_authorized_operations: bool = False  # 8-10


class OffsetCommitRequestPartition(Entity):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1  # 6+
    committed_metadata: str | None


class OffsetCommitRequestTopic(Entity):
    topic_id: UUID | None = None  # 10+
    partitions: tuple[OffsetCommitRequestPartition, ...]
    name: str = ""  # 2-9


class OffsetCommitRequest(Entity):
    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str
    group_instance_id: str | None = None  # 7+
    topics: tuple[OffsetCommitRequestTopic, ...]
    retention_time: timedelta = timedelta(milliseconds=-1)  # 2-4


class OffsetFetchRequestTopics(Entity):
    topic_id: UUID | None = None  # 10+
    partition_indexes: tuple[int, ...] = ()
    name: str = ""  # 8-9


class OffsetFetchRequestGroup(Entity):
    group_id: str
    member_id: str | None = None  # 9+
    member_epoch: int = -1  # 9+
    topics: tuple[OffsetFetchRequestTopics, ...] | None


class OffsetFetchRequest(Entity):
    groups: tuple[OffsetFetchRequestGroup, ...] = ()  # 8+
    require_stable: bool = False  # 7+
    group_id: str = ""  # 1-7
    topics: tuple[OffsetFetchRequestTopic, ...] | None = ()  # 1-7


class OffsetFetchRequestTopic(Entity):
    name: str
    partition_indexes: tuple[int, ...] = ()


class FindCoordinatorRequest(Entity):
    key_type: int = 0  # 1+
    coordinator_keys: tuple[str, ...] = ()  # 4+
    key: str = ""  # 0-3


class JoinGroupRequestProtocol(Entity):
    name: str
    metadata: bytes


class JoinGroupRequest(Entity):
    group_id: str
    session_timeout: timedelta
    rebalance_timeout: timedelta = timedelta(milliseconds=-1)  # 1+
    member_id: str
    group_instance_id: str | None = None  # 5+
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None = None  # 8+


class HeartbeatRequest(Entity):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None  # 3+


class MemberIdentity(Entity):
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None  # 5+


class LeaveGroupRequest(Entity):
    group_id: str
    members: tuple[MemberIdentity, ...] = ()  # 3+
    member_id: str = ""  # 0-2


class SyncGroupRequestAssignment(Entity):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Entity):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None  # 3+
    protocol_type: str | None = None  # 5+
    protocol_name: str | None = None  # 5+
    assignments: tuple[SyncGroupRequestAssignment, ...]


class DescribeGroupsRequest(Entity):
    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False  # 3+


class ListGroupsRequest(Entity):
    states_filter: tuple[str, ...] = ()  # 4+
    types_filter: tuple[str, ...] = ()  # 5+


class SaslHandshakeRequest(Entity):
    mechanism: str


class ApiVersionsRequest(Entity):
    client_software_name: str = ""  # 3+
    client_software_version: str = ""  # 3+
    cluster_id: str | None = None  # 5+
    node_id: int = -1  # 5+


class CreatableReplicaAssignment(Entity):
    partition_index: int
    broker_ids: tuple[int, ...] = ()


class CreatableTopicConfig(Entity):
    name: str
    value: str | None


class CreatableTopic(Entity):
    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


class CreateTopicsRequest(Entity):
    topics: tuple[CreatableTopic, ...]
    timeout: timedelta = timedelta(milliseconds=60000)
    validate_only: bool = False


class DeleteTopicState(Entity):
    name: str | None = None
    topic_id: UUID | None


class DeleteTopicsRequest(Entity):
    topics: tuple[DeleteTopicState, ...] = ()  # 6+
    timeout: timedelta
    topic_names: tuple[str, ...] = ()  # 1-5


class DeleteRecordsPartition(Entity):
    partition_index: int
    offset: int


class DeleteRecordsTopic(Entity):
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(Entity):
    topics: tuple[DeleteRecordsTopic, ...]
    timeout: timedelta


class InitProducerIdRequest(Entity):
    transactional_id: str | None
    transaction_timeout: timedelta
    producer_id: int = -1  # 3+
    producer_epoch: int = -1  # 3+


class OffsetForLeaderPartition(Entity):
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


class OffsetForLeaderTopic(Entity):
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


class OffsetForLeaderEpochRequest(Entity):
    replica_id: int = -2  # 3+
    topics: tuple[OffsetForLeaderTopic, ...]


class AddPartitionsToTxnTopic(Entity):
    name: str
    partitions: tuple[int, ...] = ()


class AddPartitionsToTxnTransaction(Entity):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...]


class AddPartitionsToTxnRequest(Entity):
    transactions: tuple[AddPartitionsToTxnTransaction, ...] = ()  # 4+
    v3_and_below_transactional_id: str = ""  # 0-3
    v3_and_below_producer_id: int = 0  # 0-3
    v3_and_below_producer_epoch: int = 0  # 0-3
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = ()  # 0-3


class AddOffsetsToTxnRequest(Entity):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class EndTxnRequest(Entity):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class WritableTxnMarkerTopic(Entity):
    name: str
    partition_indexes: tuple[int, ...] = ()


class WritableTxnMarker(Entity):
    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: int
    transaction_version: int = 0  # 2+


class WriteTxnMarkersRequest(Entity):
    markers: tuple[WritableTxnMarker, ...]


class TxnOffsetCommitRequestPartition(Entity):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1  # 2+
    committed_metadata: str | None


class TxnOffsetCommitRequestTopic(Entity):
    topic_id: UUID | None = None  # 6+
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]
    name: str = ""  # 0-5


class TxnOffsetCommitRequest(Entity):
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int = -1  # 3+
    member_id: str = ""  # 3+
    group_instance_id: str | None = None  # 3+
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


class DescribeAclsRequest(Entity):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int = 3
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class AclCreation(Entity):
    resource_type: int
    resource_name: str
    resource_pattern_type: int = 3
    principal: str
    host: str
    operation: int
    permission_type: int


class CreateAclsRequest(Entity):
    creations: tuple[AclCreation, ...]


class DeleteAclsFilter(Entity):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int = 3
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class DeleteAclsRequest(Entity):
    filters: tuple[DeleteAclsFilter, ...]


class DescribeConfigsResource(Entity):
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = ()


class DescribeConfigsRequest(Entity):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False  # 3+


class AlterableConfig(Entity):
    name: str
    value: str | None
    config_operation: int = 0  # API 44


class AlterConfigsResource(Entity):
    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


class AlterConfigsRequest(Entity):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


class AlterReplicaLogDirTopic(Entity):
    name: str
    partitions: tuple[int, ...] = ()


class AlterReplicaLogDir(Entity):
    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...]


class AlterReplicaLogDirsRequest(Entity):
    dirs: tuple[AlterReplicaLogDir, ...]


class DescribableLogDirTopic(Entity):
    topic: str
    partitions: tuple[int, ...] = ()


class DescribeLogDirsRequest(Entity):
    topics: tuple[DescribableLogDirTopic, ...] | None


class SaslAuthenticateRequest(Entity):
    auth_bytes: bytes


class CreatePartitionsAssignment(Entity):
    broker_ids: tuple[int, ...] = ()


class CreatePartitionsTopic(Entity):
    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None


class CreatePartitionsRequest(Entity):
    topics: tuple[CreatePartitionsTopic, ...]
    timeout: timedelta
    validate_only: bool


class DeleteGroupsRequest(Entity):
    groups_names: tuple[str, ...] = ()


class TopicPartitions(Entity):
    topic: str = ""  # API 43
    partitions: tuple[int, ...] = ()
    topic_id: UUID | None = None  # API 68


class ElectLeadersRequest(Entity):
    election_type: int = 0  # 1+
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout: timedelta = timedelta(milliseconds=60000)


class IncrementalAlterConfigsRequest(Entity):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


class ReassignablePartition(Entity):
    partition_index: int
    replicas: tuple[int, ...] | None = None


class ReassignableTopic(Entity):
    name: str
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(Entity):
    timeout: timedelta = timedelta(milliseconds=60000)
    allow_replication_factor_change: bool = True  # 1+
    topics: tuple[ReassignableTopic, ...]


class ListPartitionReassignmentsTopics(Entity):
    name: str
    partition_indexes: tuple[int, ...] = ()


class ListPartitionReassignmentsRequest(Entity):
    timeout: timedelta = timedelta(milliseconds=60000)
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None


class OffsetDeleteRequestPartition(Entity):
    partition_index: int


class OffsetDeleteRequestTopic(Entity):
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


class OffsetDeleteRequest(Entity):
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


class ComponentData(Entity):
    entity_type: str
    match_type: int
    match: str | None


class DescribeClientQuotasRequest(Entity):
    components: tuple[ComponentData, ...]
    strict: bool


class EntityData(Entity):
    entity_type: str
    entity_name: str | None


class OpData(Entity):
    key: str
    value: float
    remove: bool


class EntryData(Entity):
    entity: tuple[EntityData, ...]
    ops: tuple[OpData, ...]


class AlterClientQuotasRequest(Entity):
    entries: tuple[EntryData, ...]
    validate_only: bool


class UserName(Entity):
    name: str


class DescribeUserScramCredentialsRequest(Entity):
    users: tuple[UserName, ...] | None


class ScramCredentialDeletion(Entity):
    name: str
    mechanism: int


class ScramCredentialUpsertion(Entity):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentialsRequest(Entity):
    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


class PartitionData(Entity):
    partition_index: int


class TopicData(Entity):
    topic_name: str
    partitions: tuple[PartitionData, ...]


class DescribeQuorumRequest(Entity):
    topics: tuple[TopicData, ...]


class DescribeClusterRequest(Entity):
    include_cluster_authorized_operations: bool
    endpoint_type: int = 1  # 1+
    include_fenced_brokers: bool = False  # 2+


class TopicRequest(Entity):
    name: str
    partition_indexes: tuple[int, ...] = ()  # API 61


class DescribeProducersRequest(Entity):
    topics: tuple[TopicRequest, ...]


class DescribeTransactionsRequest(Entity):
    transactional_ids: tuple[str, ...] = ()


class ListTransactionsRequest(Entity):
    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter: int = -1  # 1+
    transactional_id_pattern: str | None = None  # 2+


class ConsumerGroupHeartbeatRequest(Entity):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: timedelta = timedelta(milliseconds=-1)
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None  # 1+
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None


class ConsumerGroupDescribeRequest(Entity):
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool


class GetTelemetrySubscriptionsRequest(Entity):
    client_instance_id: UUID | None


class PushTelemetryRequest(Entity):
    client_instance_id: UUID | None
    subscription_id: int
    terminating: bool
    compression_type: int
    metrics: bytes


class ListConfigResourcesRequest(Entity):
    resource_types: tuple[int, ...] = ()  # 1+


class Cursor(Entity):
    topic_name: str
    partition_index: int


class DescribeTopicPartitionsRequest(Entity):
    topics: tuple[TopicRequest, ...]
    response_partition_limit: int = 2000
    cursor: Cursor | None = None


class ShareGroupHeartbeatRequest(Entity):
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None


class ShareGroupDescribeRequest(Entity):
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool


class AcknowledgementBatch(Entity):
    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...] = ()


class ShareFetchRequest(Entity):
    group_id: str | None = None
    member_id: str | None
    share_session_epoch: int
    max_wait: timedelta
    min_bytes: int
    max_bytes: int = 2147483647
    max_records: int
    batch_size: int
    share_acquire_mode: int = 0  # 2+
    is_renew_ack: bool = False  # 2+
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...]


class AcknowledgePartition(Entity):
    partition_index: int
    acknowledgement_batches: tuple[AcknowledgementBatch, ...]


class AcknowledgeTopic(Entity):
    topic_id: UUID | None
    partitions: tuple[AcknowledgePartition, ...]


class ShareAcknowledgeRequest(Entity):
    group_id: str | None = None
    member_id: str | None
    share_session_epoch: int
    is_renew_ack: bool = False  # 2+
    topics: tuple[AcknowledgeTopic, ...]


class DescribeShareGroupOffsetsRequestTopic(Entity):
    topic_name: str
    partitions: tuple[int, ...] = ()


class DescribeShareGroupOffsetsRequestGroup(Entity):
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsRequestTopic, ...] | None


class DescribeShareGroupOffsetsRequest(Entity):
    groups: tuple[DescribeShareGroupOffsetsRequestGroup, ...]


class AlterShareGroupOffsetsRequestPartition(Entity):
    partition_index: int
    start_offset: int


class AlterShareGroupOffsetsRequestTopic(Entity):
    topic_name: str
    partitions: tuple[AlterShareGroupOffsetsRequestPartition, ...]


class AlterShareGroupOffsetsRequest(Entity):
    group_id: str
    topics: tuple[AlterShareGroupOffsetsRequestTopic, ...]


class DeleteShareGroupOffsetsRequestTopic(Entity):
    topic_name: str


class DeleteShareGroupOffsetsRequest(Entity):
    group_id: str
    topics: tuple[DeleteShareGroupOffsetsRequestTopic, ...]
