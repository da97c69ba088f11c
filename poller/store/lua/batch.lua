-- Part of a batch of scripts, whose functions stand in `scripts`: carries out calls of them in turn.
-- KEYS: those of all calls in turn.
-- ARGV: how many calls there are; of each the place of its script, how many KEYS and how many ARGV it has; then the
--   arguments of all calls in turn.
-- Answers what each call answers, or its error. An error ends its own call alone.
local calls = tonumber(ARGV[1])
local key, argument, answers = 1, 3 * calls + 2, {}
for call = 1, calls do
  local keys, arguments = tonumber(ARGV[3 * call]), tonumber(ARGV[3 * call + 1])
  local done, answer = pcall(
    scripts[tonumber(ARGV[3 * call - 1])],
    {unpack(KEYS, key, key + keys - 1)},
    {unpack(ARGV, argument, argument + arguments - 1)}
  )
  if done then
    answers[call] = answer or false
  else
    answers[call] = type(answer) == 'table' and answer or {err = tostring(answer)}
  end
  key, argument = key + keys, argument + arguments
end
return answers
