-- AddListed: keeps records of another store under the numbers they have, but for those that
-- are kept already.
-- Arguments: n, then n times number, state and lane, due, id, value; those of notegroups.
local newest = tonumber(call('GET', KEYS[1]) or 0)
for _ = 1, tonumber(arg()) do
  local n, target, due, id, value = tonumber(arg()), arg(), arg(), arg(), arg()
  local number, lane = member(n), target:sub(2)
  if call('EXISTS', P .. 'm:' .. number) == 0 then
    put(number, target:sub(1, 1), lane, due, value)
    index(id, n)
    count(sums, 'i' .. queueof(lane), 1)
    newest = math.max(newest, n)
  end
end
call('SET', KEYS[1], ('%.0f'):format(newest))
notegroups()
account()
return 1
