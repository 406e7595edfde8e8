-- PutEntries. Arguments: what is led, the term it is written in, those of write.
-- Returns 1, or 0 when another leads by now and nothing was written.
if deposed(arg(), arg()) then
  return 0
end
write()
return 1
