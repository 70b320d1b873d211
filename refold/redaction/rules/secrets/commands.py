"""Rules for secrets that are typed: options of programs, files of logins, SQL."""

from refold.redaction.checks.secrets import (
    flag,
    login,
    login_argument,
    password,
    sql,
    token,
    told,
    typed,
)
from refold.redaction.rules.rule import QUOTE, Rule
from refold.redaction.rules.secrets.assigned import VALUE

_FLAG = r"(?<![^\s\"'`(=\[,])--?(?:[a-z0-9]{1,15}[\-_]){0,3}"
_GAP = r"(?:[ \t]{1,4}|=|\\{0,7}[\"'],[ \t]{0,4}(?:\\{1,7}n[ ]{0,16})?(?=\\{0,7}[\"']))"
_ARGUMENT = r"(?:\\{0,7}[\"'])?(?P<value>[^\s\"'`\\]{3,256})"
_WHITE = r"(?:[ \t\n\r]|\\{1,7}[nrt]){1,8}"

COMMANDS = (
    Rule(
        id="secret.flag.password",
        type="SECRET",
        gate=("pass", "pwd"),
        before=_FLAG,
        reach=50,
        lead=r"[\-_]",
        then=r"(?:word|wd|phrase)?(?:[ \t=\\]|[\"'],)",
        pattern=rf"(?i:password|passwd|passphrase|pass|pwd){_GAP}{VALUE}",
        group="value",
        validator=flag,
        priority=20,
        examples=(
            "mysql --password «hunter2» -u ada",
            '["--password", "«hunter2»"]',
            "redis-cli --pass «letmein7»",
        ),
        counter_examples=(
            "run --password-file a1b2c3d4",
            "run --password --verbose2",
            "give --password options",
        ),
    ),
    Rule(
        id="secret.flag.token",
        type="SECRET",
        gate=("token", "secret", "key"),
        before=_FLAG,
        reach=50,
        lead=r"[\-_]",
        then=r"(?:[ \t=\\]|[\"'],)",
        pattern=rf"(?i:token|secret|key){_GAP}{VALUE}",
        group="value",
        validator=token,
        priority=20,
        examples=("cli --api-key '«a8f5f167f44f»'", '["--token", "«a8f5f167f44f»"]'),
        counter_examples=("cli --token $TOKEN", "sort --key 2"),
    ),
    Rule(
        id="secret.login",
        type="SECRET",
        gate=("-u", "--user", "--proxy-user", "--auth"),
        lead=r"[^0-9a-z]",
        then=r"(?:[ \t=\"'\\]|[a-z])",
        pattern=r"(?<![^\s\"'`\[,(])(?:-u|--user|--proxy-user|--auth)"
        r"(?:[ =]{0,2}|\\{0,7}[\"'],[ ]?)\\{0,7}[\"']?"
        r"[\w.@+%\-]{1,64}:(?P<value>[^\s\"'\\:]{3,128})(?![\w:])",
        group="value",
        validator=login,
        priority=20,
        examples=(
            "curl -u ada:«hunter2» https://example.com",
            "curl -u 'ada:«bear-77»' https://example.com",
        ),
        counter_examples=("docker run -u 1000:100 x", "curl -u ada:$PASSWORD x"),
    ),
    Rule(
        id="secret.login.key",
        type="SECRET",
        at="leaf",
        gate=("-u", "--auth"),
        score=0.45,
        context=r"(?<!\S)(?:-u|--user|--proxy-user|--auth)",
        pattern=r"[\w.@+%\-]{1,64}:(?P<value>[^\s\"'\\:]{3,128})",
        group="value",
        validator=login_argument,
        priority=20,
        examples=(("-u", "ada:«s3cretpw»"), ("--user", "ada:«bear-77»")),
        counter_examples=(
            ("-u", "1000:1000"),
            ("-u", "www-data:www-data"),
            ("-u", "origin:main"),
            ("--user", "$USER:$PASSWORD"),
            ("user", "ada:s3cretpw"),
        ),
    ),
    Rule(
        id="secret.mysql",
        type="SECRET",
        gate=("mysql", "mariadb"),
        then=r"(?:dump|admin|import|show|check)?[ \t\"']",
        pattern=r"(?:mysql|mariadb)[a-z]{0,8}[ \t][^\n|;&]{0,100}?(?<![^\s\"'])-p"
        r"(?P<value>[^\s\"'`\\\-][^\s\"'`\\]{2,64})",
        group="value",
        validator=typed,
        priority=20,
        examples=("mysql -h db -uroot -p«hunter2» app",),
        counter_examples=("mysql -u root -p app", "mysql -p$PASSWORD"),
    ),
    Rule(
        id="secret.typed",
        type="SECRET",
        gate=(
            "sshpass",
            "redis-cli",
            "docker login",
            "podman login",
            "helm registry",
            "htpasswd",
            "ldapsearch",
            "sqlcmd",
            "mongo",
            "smbclient",
            "az login",
            "-passin",
            "-passout",
            "wandb login",
        ),
        then=r"[a-z]{0,7}[ \t]",
        pattern=r"(?:sshpass(?: -[ev])?[ \t]{1,4}-p ?"
        r"|redis-cli[ \t][^\n|;&]{0,80}?-a[ \t]{1,4}"
        r"|(?:docker|podman) login[ \t][^\n|;&]{0,80}?-p[ \t]{1,4}"
        r"|htpasswd[ \t]{1,4}-[a-zB]{0,6}b[a-zB]{0,6}[ \t]{1,4}\S{1,64}"
        r"[ \t]{1,4}\S{1,64}[ \t]{1,4}"
        r"|ldapsearch[ \t][^\n|;&]{0,100}?-w[ \t]{1,4}"
        r"|sqlcmd[ \t][^\n|;&]{0,80}?-P[ \t]{0,4}"
        r"|mongo(?:sh|dump|restore|export|import)?[ \t][^\n|;&]{0,80}?-p[ \t]{1,4}"
        r"|smbclient[ \t][^\n|;&]{0,80}?-U[ \t]{1,4}[^\s%]{1,32}%"
        r"|-pass(?:in|out)[ \t]{1,4}pass:|wandb login[ \t]{1,4}"
        rf"|az login[ \t][^\n|;&]{{0,80}}?-p[ \t]{{1,4}}){_ARGUMENT}",
        group="value",
        validator=typed,
        priority=20,
        examples=(
            "sshpass -p «hunter2» ssh ada@host",
            "redis-cli -h cache -a «hunter2» ping",
            "docker login -u ada -p «bear-77» r.example.com",
            "htpasswd -bc users ada «bear-77»",
        ),
        counter_examples=(
            "sshpass -e ssh x",
            "redis-cli -h cache ping",
            "docker login -p $P",
        ),
    ),
    Rule(
        id="secret.netrc",
        type="SECRET",
        gate=("login",),
        then=r"(?:[ \t\n\r]|\\[nrt])",
        pattern=rf"(?<![A-Za-z])login{_WHITE}[^\s\\]{{1,64}}{_WHITE}password{_WHITE}"
        r"(?P<value>(?!\[)[^\s\"'\\]{3,256})",
        group="value",
        validator=login,
        priority=20,
        examples=("machine api.example.com\n  login ada\n  password «bear-77»\n",),
        counter_examples=("login form password $X", "login and password"),
    ),
    Rule(
        id="secret.pgpass",
        type="SECRET",
        gate=(":5432:", ":3306:", ":6432:"),
        then=r"[\w*\-]{1,32}",
        pattern=r":(?:5432|3306|6432):[\w*\-]{1,64}:[\w.@\-]{1,64}:(?P<value>[^\s:\"'\\]{3,128})",
        group="value",
        validator=login,
        priority=20,
        examples=("db.example.com:5432:app:ada:«hunter2»",),
        counter_examples=("host:5432:app:ada:*",),
    ),
    Rule(
        id="secret.sql",
        type="SECRET",
        gate=("identified",),
        then=r"[ \t]",
        pattern=r"(?i:identified)[ \t]{1,2}(?:(?i:with)[ \t]{1,2}\S{1,40}[ \t]{1,2})?"
        rf"(?i:by|as)[ \t]{{1,2}}(?i:password[ \t]{{1,2}})?(?:{QUOTE})(?P<value>"
        rf"[^\"'`\\\n]{{3,256}})",
        group="value",
        validator=sql,
        priority=20,
        examples=("CREATE USER ada IDENTIFIED BY '«letmein»'",),
        counter_examples=("identified by 'name'", "IDENTIFIED BY '<password>'"),
    ),
    Rule(
        id="secret.declared",
        type="SECRET",
        gate=(
            "env ",
            "arg ",
            "setenv ",
            "setx ",
            "set -gx ",
            "set -x ",
            "config set ",
            "secret set ",
        ),
        lead="[^0-9ac-eg-mo-qsu-z]",
        then=r" {0,2}[\"'\\]{0,8}[a-z][a-z0-9_.\-:/]{0,60}"
        r"(?:password|passwd|token|secret|key)",
        pattern=r"(?<![^\s\"'`;(|&])(?:ENV|ARG|setenv|setx|set -gx|set -x|(?:config"
        r"|secret) set) {1,3}[\"']?[A-Za-z][A-Za-z0-9_.\-:/]{0,60}?"
        r"(?P<name>(?i:password|passwd|token|secret|key))"
        rf"[\"']?[ \t]{{1,4}}{VALUE}",
        group="value",
        validator=token,
        priority=18,
        examples=(
            "ENV API_KEY «a8f5f167f44f4964»",
            "config set db.password «bear-77-q1»",
        ),
        counter_examples=("set the password now", "ENV API_KEY $KEY"),
    ),
    Rule(
        id="secret.named",
        type="SECRET",
        gate=(
            "password",
            "passwd",
            "_pass",
            "token",
            "secret",
            "_key",
            "-key",
            "apikey",
        ),
        then=r"[ \t\n\r\\\"'`,nrt]{1,96}value",
        pattern=r"(?i:password|passwd|_pass|token|secret|[_\-]key|apikey)"
        rf"(?=[ \t\n\r\\\"'`,nrt]{{1,32}}(?i:value))(?:{QUOTE})?,?"
        r"(?:[ \t\n\r]|\\{1,7}[nrt]){1,24}"
        rf"(?:{QUOTE})?(?i:value)(?:{QUOTE})?[ \t]{{0,4}}[:=][ \t]{{0,4}}{VALUE}",
        group="value",
        validator=password,
        priority=19,
        examples=(
            "- name: DB_PASSWORD\n  value: «hunter2»\n",
            '{"name": "API_TOKEN", "value": "«a8f5f167f44f»"}',
        ),
        counter_examples=("- name: DB_PASSWORD\n  valueFrom: x1y2z3",),
    ),
    Rule(
        id="secret.told",
        type="SECRET",
        gate=("use ", "using ", "enter ", "paste "),
        lead=r"[^0-9ac-eg-mo-qsu-z_]",
        then=r"[\"'`\\]{0,8}(?:[a-z+/=_.:\-]{4,15}[0-9]"
        r"|[a-z+/=_.:\-]{0,3}[0-9][a-z0-9+/=_.:\-]{4})",
        pattern=rf"(?<![A-Za-z])(?i:use|using|enter|paste) (?:{QUOTE})?"
        r"(?P<value>(?=[A-Za-z+/=_.:\-]{0,15}[0-9])[A-Za-z0-9+/=_.:\-]{8,256})"
        rf"(?:{QUOTE})? (?:as|for) (?i:the|your|my|our|an?)"
        r" [\w\- ]{0,32}?(?i:password|passphrase|secret|token|key|credentials?)(?!"
        r"[a-z])",
        group="value",
        validator=told,
        priority=17,
        examples=("For now use «q7Zt0Kx3Vb9Lm2» as the staging API key.",),
        counter_examples=("use base64-encoding as the key", "use sha256 for the token"),
    ),
)
