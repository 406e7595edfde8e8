-- CountUnstored. Arguments: n, then n times column and queue, how many.
for _ = 1, tonumber(arg()) do
  call('HINCRBY', P .. 'sums', arg(), arg())
end
return 1
