-- Locks records for a Change: nobody else claims or changes them until it releases them.
-- Arguments: token, how long (ms), n, then n times: number, id.
-- Returns for each the size of its body; -1 when it is claimed or not kept, and -2 when
-- another Change has locked it.
local token, lease = arg(), tonumber(arg())
local time, out = now(), {}
expire(time)
for i = 1, tonumber(arg()) do
  local number, id = arg(), arg()
  local m = meta(number)
  local has = m and m.id == id and call('HGET', P .. 'token', number)
  if not m or m.id ~= id then
    out[i] = -1
  elseif has and not held(number, token) then
    out[i] = has:sub(1, 2) == 'x:' and -2 or -1
  else
    local at = has and has:sub(#token + 2) or m.queue
    if m.state == 'w' and not has then
      for _, lane in ipairs(lanesof(m.queue)) do
        local due = call('ZSCORE', P .. 'w:' .. lane, number)
        if due then
          call('ZADD', P .. 'c:' .. lane, due, number)
          call('ZREM', P .. 'w:' .. lane, number)
          at = lane
          break
        end
      end
    end
    call('HSET', P .. 'token', number, token .. ' ' .. at)
    call('ZADD', P .. 'locks', time + lease, number)
    out[i] = m.body
  end
end
return out
