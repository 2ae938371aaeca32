"""Keys of a run."""

import pytest

from services.links.security import LinkSecurity, make_link_keys


def test_keys_are_fresh_and_their_secrets_stay_out_of_the_repr():
    keys, other = make_link_keys(), make_link_keys()
    assert len({*keys.model_dump().values(), *other.model_dump().values()}) == 8
    shown = repr(LinkSecurity.from_keys(keys))
    assert keys.server_public in shown
    assert keys.server_secret not in shown and keys.client_secret not in shown


def test_a_broken_key_is_named_without_its_value():
    keys = make_link_keys().model_copy(update={"client_secret": "tooshort"})
    with pytest.raises(ValueError, match="client_secret has 8 characters") as caught:
        LinkSecurity.from_keys(keys)
    assert "tooshort" not in str(caught.value)
