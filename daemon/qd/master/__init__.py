"""The process that supervisord or systemd sees. It knows the kernel only: no Redis, no app, no threads.

loop, plan            starts, reaps, kills on time, keeps the number; what it is handed
children, forking     a slot each, and how each one died; one fork each
spawning, boots       as many as are wanted; those that do not stay
reaping               the children that ended
oom, stacks           what killed them; where they hung
late, silence         what is over its time; what gives no sign of life
keeping               the keeper, watched and replaced
code, rolling         the templates that serve; from one to the next
stopping, ending      the clock of a stop, and its steps
emptiness             --stop-when-empty
news                  what children report
telling, liveness     log, `ps` and systemd; the file that says that the loop turns
"""
