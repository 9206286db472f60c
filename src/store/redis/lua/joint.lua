-- Runs the calls of a joint script that have no answer yet, each as if it were alone. The names are those of all calls, kind by kind; the
-- arguments are those of one call after another. The answer of a call that has failed is false: it is sent again by itself, so that its error
-- is its own. So is that of a call at a key that others want, after `contended` such calls, because each of them takes the server much longer
-- than the other calls, and no script may take it long. No two calls have a key in common.
local function run_each(calls, run, answers, known)
  local kinds, parts = #KEYS / calls, #ARGV / calls
  for i = 1, calls do
    if answers[i] == nil then
      local names = {}
      for kind = 1, kinds do
        names[kind] = KEYS[(kind - 1) * calls + i]
      end
      local is_done, answer = pcall(run, names, {unpack(ARGV, (i - 1) * parts + 1, i * parts)}, known)
      local is_error = not is_done or type(answer) == 'table' and answer.err
      answers[i] = not is_error and answer
    end
  end
  return answers
end
