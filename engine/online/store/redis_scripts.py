"""The atomic operations of the queue, as Lua scripts on the Redis server.

Keys below the queue's prefix: `waiting` and `taken`, sorted sets of task ids by number. `task:<id>`, a hash with state,
reason and payload. `settled` and `settled:<outcome>`, sorted sets. `counts` by outcome. `journal`, a stream with the
row numbers as ids. `facts` and `recorded`, hashes. `holder`, a hash about the active worker. `lease`, a key that
expires.

A worker's calls are numbered under its token (`enter`). A worker that was replaced, or does not know whether its last
call was executed, is refused and restarts from the last commit.
"""

from __future__ import annotations

SETTLED_KEPT = 100_000
"""Settled tasks whose ids are kept, so that they are not queued again."""
JOURNAL_KEPT = 50_000
"""Journal rows that are kept for engines that have not read them."""

_COMMON = f"""
local p = KEYS[1]
local function key(name) return p .. name end

local function settle(id, outcome, reason)
  local task = key('task:' .. id)
  redis.call('ZREM', key('waiting'), id)
  redis.call('ZREM', key('taken'), id)
  redis.call('HSET', task, 'state', outcome, 'reason', reason)
  if outcome ~= 'refused' then redis.call('HDEL', task, 'payload') end
  local seq = redis.call('HGET', task, 'seq')
  redis.call('ZADD', key('settled'), seq, id)
  redis.call('ZADD', key('settled:' .. outcome), seq, id)
  redis.call('HINCRBY', key('counts'), outcome, 1)
  local excess = redis.call('ZCARD', key('settled')) - {SETTLED_KEPT}
  if excess > 0 then
    for _, old in ipairs(redis.call('ZRANGE', key('settled'), 0, excess - 1)) do
      local state = redis.call('HGET', key('task:' .. old), 'state')
      redis.call('ZREM', key('settled'), old)
      if state then redis.call('ZREM', key('settled:' .. state), old) end
      redis.call('DEL', key('task:' .. old))
    end
  end
end

local function enter(token, call)
  local held = redis.call('HMGET', key('holder'), 'token', 'call')
  if held[1] ~= token then return 'another worker has taken over' end
  if tonumber(held[2]) ~= tonumber(call) - 1 then return 'it has lost its last commits' end
  redis.call('HSET', key('holder'), 'call', call)
  return nil
end

local function lost(why) return redis.error_reply('LEASELOST ' .. why) end
"""

PUT = (
    _COMMON
    + """
local id, payload, version, checksum, created, limit, full = unpack(ARGV)
if redis.call('EXISTS', key('task:' .. id)) == 1 then return false end
local seq = redis.call('INCR', key('seq'))
redis.call('HSET', key('task:' .. id), 'seq', seq, 'state', 'queued', 'reason', '', 'version', version,
  'attempts', 0, 'checksum', checksum, 'created', created, 'payload', payload)
redis.call('ZADD', key('waiting'), seq, id)
local excess = redis.call('ZCARD', key('waiting')) - tonumber(limit)
if excess <= 0 then return {} end
local dropped = redis.call('ZRANGE', key('waiting'), 0, excess - 1)
for _, old in ipairs(dropped) do settle(old, 'dropped', full) end
return dropped
"""
)
"""Add a task. Returns the ids of dropped tasks, or nil when the id is known."""

LEAD = (
    _COMMON
    + """
local token, process, who, ttl = unpack(ARGV)
local lease = redis.call('GET', key('lease'))
local same = redis.call('HGET', key('holder'), 'process') == process
if lease and not same then return redis.error_reply('LEASEHELD ' .. lease) end
redis.call('DEL', key('holder'))
redis.call('HSET', key('holder'), 'token', token, 'process', process, 'call', 0)
redis.call('SET', key('lease'), who, 'PX', ttl)
local ids = redis.call('ZRANGE', key('taken'), 0, -1, 'WITHSCORES')
for i = 1, #ids, 2 do
  redis.call('ZADD', key('waiting'), ids[i + 1], ids[i])
  redis.call('HSET', key('task:' .. ids[i]), 'state', 'queued')
  -- a worker that lives, and only lost its connection, was not ended by this task
  if same then redis.call('HINCRBY', key('task:' .. ids[i]), 'attempts', -1) end
end
redis.call('DEL', key('taken'))
return #ids / 2
"""
)
"""Take the lease, unless another worker has it, and queue again the tasks that its predecessor had taken."""

RENEW = (
    _COMMON
    + """
local token, who, ttl = unpack(ARGV)
if redis.call('HGET', key('holder'), 'token') ~= token then return lost('another worker has taken over') end
redis.call('SET', key('lease'), who, 'PX', ttl)
return 1
"""
)
"""Renew the lease. An expired lease that no other worker has taken is taken again."""

RELEASE = (
    _COMMON
    + """
if redis.call('HGET', key('holder'), 'token') == ARGV[1] then redis.call('DEL', key('lease')) end
return 1
"""
)

TAKE = (
    _COMMON
    + """
local why = enter(ARGV[1], ARGV[2])
if why then return lost(why) end
local first = redis.call('ZRANGE', key('waiting'), 0, 0, 'WITHSCORES')
if #first == 0 then return false end
local task = key('task:' .. first[1])
redis.call('ZREM', key('waiting'), first[1])
redis.call('ZADD', key('taken'), first[2], first[1])
redis.call('HSET', task, 'state', 'taken')
redis.call('HINCRBY', task, 'attempts', 1)
local found = redis.call('HMGET', task, 'version', 'attempts', 'payload', 'checksum')
return {first[1], found[1], found[2], found[3], found[4]}
"""
)

SETTLE = (
    _COMMON
    + """
local why = enter(ARGV[1], ARGV[2])
if why then return lost(why) end
local refused_kept, at = tonumber(ARGV[3]), 4
local function following(width)
  local items, count = {}, tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    local item = {}
    for i = 1, width do item[i] = ARGV[at + i - 1] end
    items[#items + 1] = item
    at = at + width
  end
  return items
end
local tasks, rows, facts = following(3), following(1), following(2)
local seen = {}
for _, task in ipairs(tasks) do
  local open = redis.call('ZSCORE', key('waiting'), task[1]) or redis.call('ZSCORE', key('taken'), task[1])
  if seen[task[1]] or not open then return redis.error_reply('SETTLED ' .. task[1]) end
  seen[task[1]] = true
end
for _, task in ipairs(tasks) do settle(task[1], task[2], task[3]) end
local numbers = {}
for i, row in ipairs(rows) do
  local n = redis.call('INCR', key('journal_n'))
  redis.call('XADD', key('journal'), 'MAXLEN', '~', """
    + str(JOURNAL_KEPT)
    + """, n .. '-0', 'row', row[1])
  numbers[i] = n
end
for _, fact in ipairs(facts) do redis.call('HSET', key('facts'), fact[1], fact[2]) end
for _, old in ipairs(redis.call('ZREVRANGE', key('settled:refused'), refused_kept, refused_kept + #tasks)) do
  redis.call('HDEL', key('task:' .. old), 'payload')
end
return numbers
"""
)
"""Commit outcomes, journal rows and facts. A task that was settled before refuses the whole commit."""

CONTINUE = (
    _COMMON
    + """
local last = tonumber(redis.call('GET', key('journal_n')) or 0)
if last < tonumber(ARGV[1]) then redis.call('SET', key('journal_n'), ARGV[1]) end
return 1
"""
)
