-- Returns a page of the ledger's columns, for Forget. Arguments: the cursor ("0" at the
-- start), about how many. Returns the next cursor ("0" at the end), then columns and queues;
-- some may come twice.
local step = call('HSCAN', P .. 'sums', arg(), 'COUNT', arg())
local out = {step[1]}
for i = 1, #step[2], 2 do
  out[#out + 1] = step[2][i]
end
return out
