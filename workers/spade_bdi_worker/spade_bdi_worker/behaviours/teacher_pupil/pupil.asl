// The pupil acts and learns by Q-learning. It asks the teacher before every step and reports what happened.

+!act : evaluating & state(S)
  <- .best(S, A);
     .act(A).

+!act : state(S) & .exploring
  <- .send(teacher, achieve, advise(S)).

+!act : state(S)
  <- .best(S, A);
     !try(S, A).

+!follow(S, A) : state(S)
  <- !try(S, A).

+!follow(_, _).            // the advice came too late

+!decide(S) : state(S)     // the teacher knows no better
  <- .choose(S, A);
     !try(S, A).

+!decide(_).

+!try(S, A)
  <- .act(A, R, T);
     .learn(S, A, R, T);
     .outcome(How);        // running, ended, or cut
     .send(teacher, achieve, note(S, A, R, T, How)).
