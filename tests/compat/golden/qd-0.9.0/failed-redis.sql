BEGIN TRANSACTION;
CREATE TABLE failed_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, uuid VARCHAR NOT NULL, connection TEXT NOT NULL, queue TEXT NOT NULL,
    payload TEXT NOT NULL, exception TEXT NOT NULL, failed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL
);
INSERT INTO "failed_jobs" VALUES(1,'ea9ebb71-c377-464d-b3c5-239810089576','redis','default','{"due_ms":1795873708642,"uuid":"ea9ebb71-c377-464d-b3c5-239810089576","displayName":"boom","job":"boom","maxTries":2,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"b"},"createdAt":1795873708,"id":"BA6Mto8KlXFNCERnQPTugSUlIY6aYvGC","attempts":0,"delay":null}','Traceback (most recent call last):
  File "/tmp/qd-record-rizzyexu/jobs.py", line 109, in boom
    raise ValueError("no such order")
ValueError: no such order

`qd failed show dca3uJvFD5.4.2.2`','2026-11-28 13:48:28.000000');
INSERT INTO "failed_jobs" VALUES(2,'bfddc4e6-c90e-41a4-9abc-e09355897461','redis','default','{"due_ms":1795873708644,"uuid":"bfddc4e6-c90e-41a4-9abc-e09355897461","displayName":"part","job":"part","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"c","fails":true},"createdAt":1795873708,"qd":{"batch":"135acf33-cb83-461c-a195-44fe55c74398"},"id":"xI4o9LTVY30cUraKDQZgh8jq443UIzHI","attempts":0,"delay":null}','Traceback (most recent call last):
  File "/tmp/qd-record-rizzyexu/jobs.py", line 139, in part
    raise ValueError("not this part")
ValueError: not this part

`qd failed show dca3uJvFD5.2.4.1`','2026-11-28 13:48:28.000000');
INSERT INTO "failed_jobs" VALUES(3,'a5eafe7d-d392-4c0d-85da-535e2a681368','redis','default','{"due_ms":1795873708642,"uuid":"a5eafe7d-d392-4c0d-85da-535e2a681368","displayName":"dies","job":"dies","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"d"},"createdAt":1795873708,"id":"9SJonFqmSDhnTCuO01nVYllvXYLLGmQB","attempts":0,"delay":null}','AttemptsExceeded: its worker died 2 times while running it (max_crashes 2): its worker ended with signal 9 (SIGKILL), peak memory 83M

`qd failed show dca3uJvFD5.2.7.1`','2026-11-28 13:48:29.000000');
CREATE UNIQUE INDEX failed_jobs_uuid_unique ON failed_jobs (uuid);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('failed_jobs',3);
COMMIT;
