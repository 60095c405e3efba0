"""The schedule as the app declares it. Nothing here queries a server or reads the clock; qd.scheduler does.

declare        app.schedule, the entries of qd.toml, and what they run: a job, a function, a shell line, a qd command
builder        one entry while it is being declared: how often, on which days, its conditions
entry          Entry: the frozen result, its name and its next tick
timing         cron expressions and intervals as ticks. Pure
"""
