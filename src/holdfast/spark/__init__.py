"""Everything that touches Spark itself: sessions, types, errors, Java, and its private names.

Read first:
- `session`: opening a session, and what is checked about one that was given.
- `classic`: every private name of Spark; each has a public fall-back.
- `types`: which types state keeps.
- `errors`: what failed inside a job, in words.
"""
