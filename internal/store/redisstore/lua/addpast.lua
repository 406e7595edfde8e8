-- Adds passages of another store. Arguments: how many to keep, n, then n times id,
-- passage.
local most = arg()
for _ = 1, tonumber(arg()) do
  passed(arg(), arg(), most)
end
return 1
