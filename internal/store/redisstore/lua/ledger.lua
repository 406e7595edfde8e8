-- Ledger and Recount. Argument: "1" to count kept records again.
-- Returns for each: column and queue, how many.
local out, recount = {}, arg() == '1'
local all = call('HGETALL', P .. 'sums')
for i = 1, #all, 2 do
  if not recount or not all[i]:find('^[wpd]') then
    push(out, all[i], all[i + 1])
  end
end
if recount then
  for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
    for i, lane in ipairs(lanesof(queue)) do
      for _, state in ipairs(i == 1 and {'w', 'p', 'd', 'c'} or {'w', 'c'}) do
        local n = call('ZCARD', P .. state .. ':' .. lane)
        if n > 0 then
          push(out, (state == 'c' and 'w' or state) .. queue, n)
        end
      end
    end
  end
end
return out
