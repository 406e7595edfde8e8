-- Finish: ends claims that are still held by their token.
-- Arguments: how many past failures to keep, n, then n times: number, token, and
--   "r" or "f" (retried or forwarded), past failure
--   "p" (parked), when, the record without its body, the ledger's column
-- Returns how many were held.
local most, ends, numbers = arg(), {}, {}
for i = 1, tonumber(arg()) do
  local e = {number = arg(), token = arg(), how = arg(), what = arg()}
  e.new = e.how == 'p' and arg()
  e.column = e.new and arg()
  ends[i], numbers[i] = e, e.number
end
if #ends == 0 then
  return 0
end
local has, done, claims, lanes = call('HMGET', P .. 'token', unpack(numbers)), {}, {}, {}
for i, e in ipairs(ends) do
  if has[i] and not done[e.number] and has[i]:sub(1, #e.token + 1) == e.token .. ' ' then
    local lane = has[i]:sub(#e.token + 2)
    local queue = queueof(lane)
    done[e.number] = true
    claims[#claims + 1] = e.number
    lanes[lane] = lanes[lane] or {}
    table.insert(lanes[lane], e.number)
    local m = meta(e.number)
    if not m then
      -- Somebody else deleted the record: finish the others; Recount shows the loss.
    elseif e.new then
      local body = m.body > 0 and call('GETRANGE', P .. 'm:' .. e.number, -m.body, -1) or ''
      put(e.number, 'p', queue, e.what, m.group .. e.new .. body)
      count(sums, e.column .. queue, 1)
    else
      call('DEL', P .. 'm:' .. e.number)
      unindex(m.id, e.number)
      count(sums, e.how .. queue, 1)
      addpast(m.id, e.what, most)
    end
    if m then
      count(sums, 'w' .. queue, -1)
      count(kept, 'w' .. m.group, -1)
    end
  end
end
for lane, some in pairs(lanes) do
  call('ZREM', P .. 'c:' .. lane, unpack(some))
end
if #claims > 0 then
  call('HDEL', P .. 'token', unpack(claims))
  call('ZREM', P .. 'lease', unpack(claims))
else
  wrote()
end
account()
return #claims
