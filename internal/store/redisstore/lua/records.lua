-- What scripts that move records share.

-- sums and kept gather what a script counts; account writes it. Fields are a letter and the
-- queue (sums: see columns in ledger.go) or the group (kept: the letter of its state).
local sums, kept, listed = {}, {}, {}
local function count(t, field, n)
  t[field] = (t[field] or 0) + n
end
local function account()
  for field, n in pairs(sums) do
    if n ~= 0 then
      call('HINCRBY', P .. 'sums', field, n)
    end
  end
  for field, n in pairs(kept) do
    if n ~= 0 and call('HINCRBY', P .. 'groups:kept', field, n) == 0 then
      call('HDEL', P .. 'groups:kept', field)
    end
  end
end

-- put writes a record: a waiting one to a lane, any other to a queue.
local function put(number, state, lane, due, value)
  local group, queue = value:sub(1, 8), queueof(lane)
  call('SET', P .. 'm:' .. number, value)
  call('ZADD', P .. state .. ':' .. lane, due, number)
  if state ~= 'w' then
    call('ZADD', P .. 'g:' .. state .. ':' .. group, due, number)
  end
  if not listed[state .. lane] then
    listed[state .. lane] = true
    call('SADD', P .. 'queues', queue)
    if state == 'w' then
      call('SADD', P .. 'wq', lane)
    end
    if lane ~= queue then
      call('SADD', P .. 'to:' .. queue, lane)
    end
  end
  count(sums, state .. queue, 1)
  count(kept, state .. group, 1)
end

-- take removes a record from its lane or queue; a waiting one is claimed or locked.
local function take(number, m)
  if m.state == 'w' then
    for _, lane in ipairs(lanesof(m.queue)) do
      if call('ZREM', P .. 'c:' .. lane, number) == 1 then
        break
      end
    end
  else
    call('ZREM', P .. m.state .. ':' .. m.queue, number)
    call('ZREM', P .. 'g:' .. m.state .. ':' .. m.group, number)
  end
  count(sums, m.state .. m.queue, -1)
  count(kept, m.state .. m.group, -1)
end

-- The index of ids: id → its numbers, in hashes small enough for the compact encoding.
local function index(id, number)
  local key, plain = P .. 'i:' .. bucket(id), ('%.0f'):format(tonumber(number))
  local has = call('HGET', key, id)
  call('HSET', key, id, has and has .. ',' .. plain or plain)
end
local function unindex(id, number)
  local key, plain, rest = P .. 'i:' .. bucket(id), ('%.0f'):format(tonumber(number)), {}
  for n in (call('HGET', key, id) or ''):gmatch('%d+') do
    if n ~= plain then
      rest[#rest + 1] = n
    end
  end
  if #rest > 0 then
    call('HSET', key, id, table.concat(rest, ','))
  else
    call('HDEL', key, id)
  end
end

-- add stores new records, read from the arguments:
--   n, then n times: state ("n", "u" or "q": newly parked, and the column of that) and lane, due, id, value
-- and returns the last number.
local function add()
  local n = tonumber(call('GET', KEYS[1]) or 0)
  for _ = 1, tonumber(arg()) do
    local target, due, id, value = arg(), arg(), arg(), arg()
    n = n + 1
    local state, lane = target:sub(1, 1), target:sub(2)
    if state == 'n' or state == 'u' or state == 'q' then
      count(sums, state .. lane, 1)
      state = 'p'
    end
    put(member(n), state, lane, due, value)
    index(id, n)
    count(sums, 'i' .. queueof(lane), 1)
  end
  call('SET', KEYS[1], ('%.0f'):format(n))
  return n
end

-- notegroups writes what groups share, and their failures, read from the arguments:
--   n, then n times
--   group, what its members share, reasons (bits), first, last (seconds since 1970,
--   0 for none), k, then k times: hour since 1970, how many failed in it
-- Failures are stored as the text "first last reasons hour:n hour:n …" of the last 24 hours.
local function notegroups()
  for _ = 1, tonumber(arg()) do
    local group, shared, reasons, first, last = arg(), arg(), tonumber(arg()), tonumber(arg()), tonumber(arg())
    call('HSETNX', P .. 'groups', group, shared)
    local hours, newest = {}, 0
    local function hour(at, n)
      hours[at] = (hours[at] or 0) + n
      newest = math.max(newest, at)
    end
    for _ = 1, tonumber(arg()) do
      hour(tonumber(arg()), tonumber(arg()))
    end
    local was = call('HGET', P .. 'groups:seen', group)
    if was then
      local f, l, r, rest = was:match('^(%d+) (%d+) (%d+)(.*)$')
      f, l = tonumber(f), tonumber(l)
      if first == 0 or f ~= 0 and f < first then
        first = f
      end
      last, reasons = math.max(last, l), bit.bor(reasons, tonumber(r))
      for at, n in rest:gmatch('(%d+):(%d+)') do
        hour(tonumber(at), tonumber(n))
      end
    end
    local text = {('%d %d %d'):format(first, last, reasons)}
    for at, n in pairs(hours) do
      if at > newest - 24 then
        text[#text + 1] = ('%d:%d'):format(at, n)
      end
    end
    call('HSET', P .. 'groups:seen', group, table.concat(text, ' '))
  end
end

-- remember stores receipts, read from the arguments: their process, how many to keep for
-- each process, for how many processes at least, how long (ms) for others, n, then n
-- receipts.
local function remember()
  local process, most, owners, age, n = arg(), tonumber(arg()), tonumber(arg()), tonumber(arg()), tonumber(arg())
  for _ = 1, n do
    call('RPUSH', P .. 'receipts:' .. process, arg())
  end
  if n == 0 then
    return
  end
  local time = now()
  call('LTRIM', P .. 'receipts:' .. process, -most, -1)
  call('HINCRBY', P .. 'receipts:n', process, n)
  call('ZADD', P .. 'receipts:by', time, process)
  for _, old in ipairs(call('ZRANGE', P .. 'receipts:by', '-inf', time - age, 'BYSCORE', 'LIMIT', 0, math.max(call('ZCARD', P .. 'receipts:by') - owners, 0))) do
    call('DEL', P .. 'receipts:' .. old)
    call('HDEL', P .. 'receipts:n', old)
    call('ZREM', P .. 'receipts:by', old)
  end
end

-- addpast adds a past failure to a stream of about the newest most; lists by id have its
-- places there.
local oldest
local function place(s)
  local ms, n = s:match('^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(n)
end
local function addpast(id, pastFailure, most)
  local entry = call('XADD', P .. 'past', 'MAXLEN', '~', most, '*', 'p', pastFailure)
  local list = P .. 'past:' .. bucket(id)
  call('RPUSH', list, id .. entry)
  if not oldest then
    oldest = call('XRANGE', P .. 'past', '-', '+', 'COUNT', 1)[1][1]
  end
  local oldms, oldn = place(oldest)
  for _ = 1, 2 do -- two for each new one: drop here what the stream dropped
    local ms, n = place(call('LINDEX', list, 0):sub(17))
    if ms > oldms or ms == oldms and n >= oldn then
      break
    end
    call('LPOP', list)
  end
end

-- write writes entries of the side table, read from the arguments: n, then n times
-- name, "1" or "0" (to delete it), value.
local function write()
  local none = false
  for _ = 1, tonumber(arg()) do
    local name, there, value = arg(), arg(), arg()
    if there == '1' then
      call('HSET', P .. 'e', name, value)
      call('ZADD', P .. 'en', 0, name)
    elseif call('HDEL', P .. 'e', name) == 1 then
      call('ZREM', P .. 'en', name)
    else
      none = true
    end
  end
  if none then
    wrote()
  end
end
