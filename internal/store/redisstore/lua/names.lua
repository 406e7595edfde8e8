-- A step over the ledger's columns of queues, for Forget. Arguments: where it goes on
-- ("0": at the beginning), how many there are to a step. Returns where the next one goes
-- on ("0": this was the last), then columns and queues; some may come twice.
local step = call('HSCAN', P .. 'sums', arg(), 'COUNT', arg())
local out = {step[1]}
for i = 1, #step[2], 2 do
  out[#out + 1] = step[2][i]
end
return out
