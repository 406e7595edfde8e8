-- Renews the leases of claims that are still held by their token.
-- Arguments: how long (ms), n, then n times: number, token.
-- Returns the numbers of those that are not.
local till, lost = now() + tonumber(arg()), {}
for _ = 1, tonumber(arg()) do
  local number, token = arg(), arg()
  if held(number, token) then
    call('ZADD', P .. 'lease', till, number)
  else
    lost[#lost + 1] = number
  end
end
return lost
