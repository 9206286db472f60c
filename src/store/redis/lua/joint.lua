-- Makes one of the calls of a joint script as if it were alone. The answer of a call that has failed is false: it is sent again by itself, so that
-- its error is its own. So is that of a call at a key that others want, after `contended` such calls: each of them takes the server much longer
-- than the other calls, and no script may take it long. No two calls have a key in common.
local function alone(run, KEYS, ARGV, value)
  local is_done, answer = pcall(run, KEYS, ARGV, value)
  local is_error = not is_done or type(answer) == 'table' and answer.err
  return not is_error and answer
end
