#!lua flags=allow-oom
-- Append a delete event to the stream, also on a server whose memory is full.
--
-- Guarantee: what XADD promises. Deletes are how a full server gets free again, so they must still be accepted.
--
-- KEYS[1]      the stream
-- ARGV[1..]    the event's fields: name, value, ...
--
-- Returns the entry id.

return redis.call('XADD', KEYS[1], '*', unpack(ARGV))
