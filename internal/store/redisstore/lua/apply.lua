-- Applies a Change, whole or not at all, and only once.
-- Arguments:
--   what is led, the term, token of the locks (which may be lost), how long to remember
--   this (ms), how many past failures to keep
--   n, then n times
--     "k" number, state and lane, due, "1" when the body is unchanged, group and record
--     "d" number, past failure ("" when none is kept)  deleted
--     "f" number, past failure                         forwarded, and deleted
--   those of add, of notegroups, of write
-- Returns 1; 0 when locks were lost or it is forbidden, so nothing was done; -1 when another leads.
local led, term = arg(), arg()
local token, ttl, most = arg(), arg(), arg()
local once = P .. 't:' .. token
if call('EXISTS', once) == 1 then
  wrote()
  return 1
end
if call('EXISTS', P .. 'undone:' .. token) == 1 then
  return 0
end
if deposed(led, term) then
  return -1
end
local ops = {}
for i = 1, tonumber(arg()) do
  local op = {how = arg(), number = arg()}
  if op.how == 'k' then
    op.target, op.due, op.same, op.value = arg(), arg(), arg(), arg()
  else
    op.pastFailure = arg()
  end
  if not held(op.number, token) then
    return 0
  end
  ops[i] = op
end
for _, op in ipairs(ops) do
  local m = meta(op.number)
  if m then
    take(op.number, m)
    endclaim(op.number)
    if op.how == 'k' then
      local lane, value = op.target:sub(2), op.value
      local queue = queueof(lane)
      if op.same == '1' and m.body > 0 then
        value = value .. call('GETRANGE', P .. 'm:' .. op.number, -m.body, -1)
      end
      put(op.number, op.target:sub(1, 1), lane, op.due, value)
      if queue ~= m.queue then
        count(sums, 'm' .. m.queue, 1)
        count(sums, 'i' .. queue, 1)
      end
    else
      call('DEL', P .. 'm:' .. op.number)
      unindex(m.id, op.number)
      count(sums, (op.how == 'f' and 'f' or 'g') .. m.queue, 1)
      if op.pastFailure ~= '' then
        addpast(m.id, op.pastFailure, most)
      end
    end
  end
end
add()
notegroups()
write()
account()
call('SET', once, '1', 'PX', ttl)
return 1
