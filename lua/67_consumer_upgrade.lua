-- A classic group with members becomes one of the consumer protocol.

-- Convert the group for a member that joins by the consumer protocol; returns the reply where it cannot be, else nil.
-- Source: GroupMetadataManager.validateOnlineUpgrade
function consumer.upgrade(_, request)
  return { code.GROUP_ID_NOT_FOUND, request.member_id, 'Group {group} is not a consumer group.' }
end
