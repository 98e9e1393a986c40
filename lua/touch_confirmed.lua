#!lua flags=allow-oom
-- Write something that leaves nothing behind.
--
-- Guarantee: the server counts a write of the connection that called. WAIT and WAITAOF on it then speak of everything
--   that the server has written until now, whoever had it written, for files and replicas get it in one order.
--
-- KEYS[1]      confirmed:{ns}
--
-- Returns nothing.

redis.call('SET', KEYS[1], '', 'PX', 1)
