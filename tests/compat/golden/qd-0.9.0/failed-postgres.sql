BEGIN TRANSACTION;
CREATE TABLE failed_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, uuid VARCHAR NOT NULL, connection TEXT NOT NULL, queue TEXT NOT NULL,
    payload TEXT NOT NULL, exception TEXT NOT NULL, failed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL
);
INSERT INTO "failed_jobs" VALUES(1,'294eb377-1eb6-44f1-8bb9-be06aa2a8497','redis','default','{"due_ms":1795873739305,"uuid":"294eb377-1eb6-44f1-8bb9-be06aa2a8497","displayName":"boom","job":"boom","maxTries":2,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"b"},"createdAt":1795873739,"id":"VZ4BSWqVPwXHw7bGpaJlDpPTFSVGMTyK","attempts":0,"delay":null}','Traceback (most recent call last):
  File "/tmp/qd-record-ipqyzexa/jobs.py", line 109, in boom
    raise ValueError("no such order")
ValueError: no such order

`qd failed show IYdJpdwdTu.0.7.2`','2026-11-28 13:48:59.000000');
INSERT INTO "failed_jobs" VALUES(2,'ac6b9fb3-ef47-4023-b715-dace9a491dce','redis','default','{"due_ms":1795873739350,"uuid":"ac6b9fb3-ef47-4023-b715-dace9a491dce","displayName":"part","job":"part","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"c","fails":true},"createdAt":1795873739,"qd":{"batch":"71928221-9b6d-41e3-9685-a3eb9d40c285"},"id":"0LSDYPkbRlNozZYDxEqwCc9jXcpJjTMh","attempts":0,"delay":null}','Traceback (most recent call last):
  File "/tmp/qd-record-ipqyzexa/jobs.py", line 139, in part
    raise ValueError("not this part")
ValueError: not this part

`qd failed show IYdJpdwdTu.4.1.1`','2026-11-28 13:48:59.000000');
INSERT INTO "failed_jobs" VALUES(3,'fd5177a0-2241-429c-bd3b-09a40a7c99a9','redis','default','{"due_ms":1795873739306,"uuid":"fd5177a0-2241-429c-bd3b-09a40a7c99a9","displayName":"dies","job":"dies","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"name":"d"},"createdAt":1795873739,"id":"nv53BQGAP1RzmULSaZe86wHYD3I62L5r","attempts":0,"delay":null}','AttemptsExceeded: its worker died 2 times while running it (max_crashes 2): its worker ended with signal 9 (SIGKILL), peak memory 95M

`qd failed show IYdJpdwdTu.4.4.1`','2026-11-28 13:48:59.000000');
CREATE UNIQUE INDEX failed_jobs_uuid_unique ON failed_jobs (uuid);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('failed_jobs',3);
COMMIT;
