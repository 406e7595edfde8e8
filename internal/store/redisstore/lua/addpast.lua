-- Adds past failures of another store. Arguments: how many to keep, n, then n times id,
-- past failure.
local most = arg()
for _ = 1, tonumber(arg()) do
  addpast(arg(), arg(), most)
end
return 1
