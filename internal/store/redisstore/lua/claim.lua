-- Claim: claims due records of a lane, after it releases expired claims.
-- Arguments: lane, up to when, how many at most, bytes of bodies at most, "1" when the first
-- may be larger, token, how long (ms).
-- Returns for each: number, record. A missing record is damage: it is claimed, too, so that it
-- delays no other, and returned with its number alone.
local lane, upto, most, bytes, larger, token, lease = arg(), arg(), arg(), tonumber(arg()), arg() == '1', arg(), tonumber(arg())
local time = now()
expire(time)
local w, c, out = P .. 'w:' .. lane, P .. 'c:' .. lane, {}
local due = call('ZRANGE', w, '-inf', upto, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local gone, claimed, leases, tokens = {}, {}, {}, {}
for i = 1, #due, 2 do
  local number, value = due[i], nil
  local m = meta(number)
  if m then
    if m.body > bytes and not (larger and i == 1) then
      break
    end
    bytes = bytes - m.body
    value = call('GET', P .. 'm:' .. number)
    local n = #tokens
    claimed[n + 1], claimed[n + 2] = due[i + 1], number
    leases[n + 1], leases[n + 2] = time + lease, number
    tokens[n + 1], tokens[n + 2] = number, token .. ' ' .. lane
  end
  gone[#gone + 1] = number
  push(out, number, value or '')
end
if #gone > 0 then
  call('ZREM', w, unpack(gone))
end
if #tokens > 0 then
  call('ZADD', c, unpack(claimed))
  call('ZADD', P .. 'lease', unpack(leases))
  call('HSET', P .. 'token', unpack(tokens))
end
return out
