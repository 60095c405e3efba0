BEGIN TRANSACTION;
CREATE TABLE failed_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, uuid VARCHAR NOT NULL, connection TEXT NOT NULL, queue TEXT NOT NULL,
    payload TEXT NOT NULL, exception TEXT NOT NULL, failed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL
);
INSERT INTO "failed_jobs" VALUES(1,'01a7da5d-8f0a-4c53-bf46-65f99cd613c1','redis','default','{"due_ms":1795873721941,"uuid":"01a7da5d-8f0a-4c53-bf46-65f99cd613c1","displayName":"part","job":"part","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"c","fails":true},"createdAt":1795873721,"qd":{"batch":"589957bc-eca5-4ed4-af23-d0d95909c426"},"id":"FEOiJDBu4bXZAQNbKkwZDhGqPQhUAnyj","attempts":0,"delay":null}','Traceback (most recent call last):
  File "/tmp/qd-record-vgqrdh9a/jobs.py", line 139, in part
    raise ValueError("not this part")
ValueError: not this part

`qd failed show myiLlX6j1g.2.10.1`','2026-11-28 13:48:42.000000');
INSERT INTO "failed_jobs" VALUES(2,'99ba667b-9d4c-43f1-9ae4-1d3e8f346096','redis','default','{"due_ms":1795873721933,"uuid":"99ba667b-9d4c-43f1-9ae4-1d3e8f346096","displayName":"boom","job":"boom","maxTries":2,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"b"},"createdAt":1795873721,"id":"26dpn1EgZC3JtYQkgvrla9iENTxJZxol","attempts":0,"delay":null}','Traceback (most recent call last):
  File "/tmp/qd-record-vgqrdh9a/jobs.py", line 109, in boom
    raise ValueError("no such order")
ValueError: no such order

`qd failed show myiLlX6j1g.2.11.2`','2026-11-28 13:48:42.000000');
INSERT INTO "failed_jobs" VALUES(3,'3aac69c8-2adc-412a-988c-8bdd37303756','redis','default','{"due_ms":1795873721933,"uuid":"3aac69c8-2adc-412a-988c-8bdd37303756","displayName":"dies","job":"dies","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"d"},"createdAt":1795873721,"id":"oJhuRxz2qwQuJcjIkMCQxDp2TAIvVQzP","attempts":0,"delay":null}','AttemptsExceeded: its worker died 2 times while running it (max_crashes 2): its worker ended with signal 9 (SIGKILL), peak memory 86M

`qd failed show myiLlX6j1g.2.12.1`','2026-11-28 13:48:42.000000');
CREATE UNIQUE INDEX failed_jobs_uuid_unique ON failed_jobs (uuid);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('failed_jobs',3);
COMMIT;
