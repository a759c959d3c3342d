"""Rules that make principals of certificates' subjects. Source: SslPrincipalMapperTest"""

from __future__ import annotations

import pytest

from korvet.errors import ConfigError
from korvet.security.mapping import NoRule, PrincipalRules
from tests.support.ported import kafka

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@kafka("SslPrincipalMapperTest.testValidRules")
@pytest.mark.parametrize(
    "rules",
    [
        "",
        "DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_valid_rules_are_taken(rules: str) -> None:
    PrincipalRules(rules)


@kafka("SslPrincipalMapperTest.testInvalidRules")
@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
    ],
)
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match="principal-rules"):
        PrincipalRules(rules)


@kafka("SslPrincipalMapperTest.testSslPrincipalMapper")
@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_first_rule_that_matches_makes_the_name(subject: str, name: str) -> None:
    assert PrincipalRules(RULES).name(subject) == name


@kafka("SslPrincipalMapperTest.testRulesSplitting")
@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("RULE:^CN=(.*?),(.*)$/$1,$2/, DEFAULT", "CN=a,O=b", "a,O=b"),
        (r"RULE:^CN=a\/b$/x\/y/U,DEFAULT", "CN=a/b", "X/Y"),
        (r"RULE:^CN=a\,O=b$/c/", "CN=a,O=b", "c"),
        ("  RULE:^a$/b/  ,  , DEFAULT ", "z", "z"),
        ("  RULE:([A-Z]*)/$1/L   ,RULE:([a-z]+)/$1$1/,   DEFAULT  ", "AB", "ab"),
        ("  RULE:([A-Z]*)/$1/L   ,RULE:([a-z]+)/$1$1/,   DEFAULT  ", "ab", "abab"),
        (",  , RULE: /   /    ,,,   DEFAULT, ,   ", "CN=a", "CN=a"),
        (",,RULE://,,,DEFAULT,,", "CN=a", "CN=a"),
        (r"RULE:CN=\\(\/)\(\)/\/$1/U,DEFAULT", r"CN=\/()", "//"),
        ("RULE:,RULE:,/x,RULE:,\\/y/U,DEFAULT", ",RULE:,", "X,RULE:,/Y"),
    ],
)
def test_commas_and_slashes_may_be_in_rules(rules: str, subject: str, name: str) -> None:
    assert PrincipalRules(rules).name(subject) == name


@kafka("SslPrincipalMapperTest.testCommaWithWhitespace")
def test_comma_with_white_space_belongs_to_the_pattern() -> None:
    value = "RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT"
    assert PrincipalRules(value).name("CN=Tkac\\, Adam,OU=ITZ,DC=geodis,DC=cz") == "Tkac\\, Adam"


def test_reference_without_a_group_stays_a_text() -> None:
    assert PrincipalRules("RULE:^(a)$/$1$2$12/").name("a") == "a$2a2"


def test_subject_without_a_rule_is_refused() -> None:
    with pytest.raises(NoRule, match="no rule"):
        PrincipalRules("RULE:^CN=a$/a/").name("CN=ab")


def test_pattern_must_match_the_whole_subject() -> None:
    with pytest.raises(NoRule):
        PrincipalRules("RULE:CN=a/a/").name("CN=admin,CN=a")


def test_pattern_that_takes_exponential_time_elsewhere_ends_here() -> None:
    with pytest.raises(NoRule):
        PrincipalRules("RULE:^(a+)+$/$1/").name("a" * 5000 + "!")
