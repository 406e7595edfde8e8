-- Releases claims and locks that are still held by their token. Arguments: n, then n times: number, token.
for _ = 1, tonumber(arg()) do
  local number, token = arg(), arg()
  local has = held(number, token)
  if has then
    giveback(number, has)
  end
end
return 1
