-- Resign. Arguments: what, replica.
local what, replica = arg(), arg()
if call('GET', P .. 'leader:' .. what) == replica then
  call('DEL', P .. 'leader:' .. what)
end
return 1
