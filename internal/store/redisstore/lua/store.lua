-- What all scripts begin with.
--
-- KEYS[1]  the store's counter, whose name has the prefix of all other keys. They depend on
--          data (queues, groups, numbers), so scripts make them; all have the store's hash
--          tag, and so its slot
-- KEYS[2]  a key that never exists. While a cluster moves the slot, Redis answers TRYAGAIN
--          if one of two keys is absent, before it runs the script. Otherwise a script
--          would fail half way, at the first key that has moved or is not there yet, and
--          its earlier writes would stay
local P = KEYS[1]:sub(1, -4)
local call = redis.call

-- arg returns the next argument.
local at = 0
local function arg()
  at = at + 1
  return ARGV[at]
end

-- push appends values to a list.
local function push(list, ...)
  for _, v in ipairs({...}) do
    list[#list + 1] = v
  end
end

-- now returns the server's time in milliseconds.
local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- member returns a number as a member of sorted sets, so that equal scores are in order of arrival.
local function member(n)
  return ('%014.0f'):format(n)
end

-- uvarint reads a number at i, and returns it with where it ends; in damaged data, the end.
local function uvarint(s, i)
  local n, by = 0, 1
  while true do
    local b = s:byte(i)
    i = i + 1
    if not b or b < 128 then
      return n + (b or 0) * by, i
    end
    n, by = n + (b - 128) * by, by * 128
  end
end

-- bucket returns the part of an index that has an id.
local function bucket(id)
  return ('%03x'):format(id:byte(15) % 16 * 256 + id:byte(16))
end

-- meta reads the first bytes of a record: see value in keys.go. It returns nil when the record does
-- not exist or is damaged there, so that other records are not affected.
local letters = {'w', 'p', 'd'}
local function meta(number)
  local s = call('GETRANGE', P .. 'm:' .. number, 0, 319)
  if s == '' then
    return nil
  end
  local body, i = uvarint(s, 10)
  local n, j = uvarint(s, i + 33)
  if not letters[s:byte(i)] then
    return nil
  end
  return {group = s:sub(1, 8), body = body, state = letters[s:byte(i)], id = s:sub(i + 1, i + 16), queue = s:sub(j, j + n - 1)}
end

-- head returns a record without its body and its group.
local function head(number, m)
  return call('GETRANGE', P .. 'm:' .. number, 8, -(m.body + 1))
end

-- queueof returns the queue of a lane: see laneText in keys.go.
local function queueof(lane)
  if #lane <= 255 then
    return lane
  end
  local n, i = uvarint(lane, 1)
  return lane:sub(i, i + n - 1)
end

-- lanesof returns the lanes of a queue: its own, and those of its forward targets.
local function lanesof(queue)
  local all = call('SMEMBERS', P .. 'to:' .. queue)
  table.insert(all, 1, queue)
  return all
end

-- endclaim deletes a claim or lock.
local function endclaim(number)
  call('HDEL', P .. 'token', number)
  call('ZREM', P .. 'lease', number)
  call('ZREM', P .. 'locks', number)
end

-- giveback ends a claim or a lock: a waiting record can be claimed again.
local function giveback(number, token)
  local lane = token:sub(token:find(' ', 1, true) + 1)
  local due = call('ZSCORE', P .. 'c:' .. lane, number)
  if due then
    call('ZREM', P .. 'c:' .. lane, number)
    call('ZADD', P .. 'w:' .. lane, due, number)
    call('SADD', P .. 'wq', lane)
  end
  endclaim(number)
end

-- held returns whether a record is claimed or locked by this token.
local function held(number, token)
  local has = call('HGET', P .. 'token', number)
  return has and has:sub(1, #token + 1) == token .. ' ' and has
end

-- expire releases expired claims, a bounded number of them.
local function expire(time)
  for _, number in ipairs(call('ZRANGE', P .. 'lease', '-inf', time, 'BYSCORE', 'LIMIT', 0, 256)) do
    giveback(number, call('HGET', P .. 'token', number))
  end
end

-- deposed returns whether the term of what has ended: see store.WithTerm. Term 0 means that the
-- caller does not lead.
local function deposed(what, term)
  return term ~= '0' and call('HGET', P .. 'terms', what) ~= term
end

-- wrote writes when a script finds that all was done before: Redis confirms the last write of a
-- connection, and otherwise there would be none.
local function wrote()
  call('SET', P .. 'wrote', '1')
end
