"""Which values are secrets, and that they do not get through."""

import json

from services.secret_values import contains_secret, known_secrets, redact

ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": 'abc"def\\ghi-secret',
    "DFLASH_MESH_TOKEN": "token-token-token",
    "ALERTS": "https://hooks.example/T0K3N",
    "HOME": "/nonexistent",
    "PATH": "/usr/bin:/bin",
    "SHORT_KEY": "abc",
    "SSL_KEY": "/usr",
    "TOKENIZERS_PARALLELISM": "false-false",
    "TLS_KEY": "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----",
}


def test_names_decide_and_paths_and_short_values_do_not_count():
    found = known_secrets(ENVIRONMENT, names=["ALERTS"])
    assert b"token-token-token" in found
    assert b"https://hooks.example/T0K3N" in found
    assert b"MIIEvQIBADANBg" in found
    assert not {b"abc", b"/usr", b"false-false", b"/usr/bin:/bin"} & set(found)


def test_values_of_the_credentials_file_are_secrets(tmp_path):
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = AKIAFILEKEY\naws_secret_access_key = fromfile99\n"
    )
    found = known_secrets({"AWS_SHARED_CREDENTIALS_FILE": str(path)})
    assert set(found) == {b"AKIAFILEKEY", b"fromfile99"}


def test_redaction_covers_plain_and_json_forms():
    secrets = known_secrets(ENVIRONMENT)
    value = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
    for text in (f"key={value}", json.dumps({"key": value})):
        data = text.encode()
        assert contains_secret(data, secrets)
        assert not contains_secret(redact(data, secrets), secrets)
        assert b"[redacted]" in redact(data, secrets)
