use super::*;

#[test]
fn names_stay_inside() {
    for (path, expected) in [
        ("/", Some("index.html")),
        ("/v1/", Some("v1/index.html")),
        ("/v1/a.js", Some("v1/a.js")),
        ("/a b", Some("a b")),
        ("", None),
        ("a.js", None),
        ("//", None),
        ("/../a", None),
        ("/v1/../../a", None),
        ("/v1/..", None),
        ("/.git/config", None),
        ("/./a", None),
        ("/v1//a", None),
        ("/v1\\..\\a", None),
        ("/a\0.js", None),
        ("/service_worker.js", None),
    ] {
        let found = names(path).map(|names| names.join("/"));
        assert_eq!(found.as_deref(), expected, "{path:?}");
    }
}
