-- PutEntries. Arguments: what is led, the term, those of write.
-- Returns 1, or 0 when another leads, so nothing was written.
if deposed(arg(), arg()) then
  return 0
end
write()
return 1
